"""The client's behavior if the service is busy, unavailable, or disconnects."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import trustme

from homing import Content, Recipient
from homing.client import AsyncClient, Client, RateLimited, Retries, ServiceBusy, ServiceUnreachable
from homing.client.requests import PreparedRequest
from homing.client.transport import Response
from homing.core.errors import ConfigError, StoreUnavailable

Answer = tuple[int, dict[str, str], bytes] | None

SENT = b'{"notificationIds":["n-1"],"batchId":"b-1","status":"queued"}'
BUSY = (503, {"Retry-After": "0"}, b'{"error":{"code":"OVERLOADED","message":"too much"}}')
LIMITED = (429, {"Retry-After": "0"}, b'{"error":{"code":"RATE_LIMITED","message":"used up"}}')
AWAY: Answer = (503, {}, b'{"error":{"code":"STORE_UNAVAILABLE","message":"away"}}')
FINE: Answer = (202, {}, SENT)
COUNTS: Answer = (200, {}, b'{"pending":1}')
HANG_UP = None
GATEWAY = (502, {"Content-Type": "text/html"}, b"<h1>Bad gateway</h1>")


class ScriptedServer(ThreadingHTTPServer):
    """Responds by its script to any request, and records the requests."""

    daemon_threads = True

    def __init__(self, script: list[Answer]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script = script
        self.asked: list[tuple[str, str, str | None]] = []
        self.connections: set[Any] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ScriptedServer

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked.append((self.command, self.path, self.headers.get("Idempotency-Key")))
        self.server.connections.add(self.client_address)
        answer = self.server.script.pop(0)
        if answer is None:
            self.close_connection = True
            return
        status, headers, body = answer
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815

    def log_message(self, *_: Any) -> None:
        """Disables the server's own log."""


@pytest.fixture
def moody() -> Iterator[Callable[..., ScriptedServer]]:
    with ExitStack() as running:

        def start(*script: Answer) -> ScriptedServer:
            server = running.enter_context(ScriptedServer(list(script)))
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
            running.callback(server.shutdown)
            return server

        yield start


def client(server: ScriptedServer, **options: Any) -> Client:
    return Client(server.url, "key", **options)


def send(to: Client) -> str:
    mail = to.send_notification(
        recipient=Recipient(email="a@b.c"), channel="email", content=Content(body="x")
    )
    return mail.batch_id


def test_a_send_is_repeated_under_its_key_until_it_is_accepted(moody: Callable[..., ScriptedServer]) -> None:
    server = moody(BUSY, LIMITED, HANG_UP, FINE)
    with client(server) as one:
        assert send(one) == "b-1"
    assert len(server.asked) == 4
    assert len({key for _, _, key in server.asked}) == 1
    assert server.asked[0][2] is not None


def test_a_request_that_must_not_be_repeated_is_made_once(moody: Callable[..., ScriptedServer]) -> None:
    for script, error in ((BUSY, ServiceBusy), (LIMITED, RateLimited), (HANG_UP, ServiceUnreachable)):
        server = moody(script)
        with client(server) as one, pytest.raises(error):
            one.cancel_notification("n-1")
        assert len(server.asked) == 1


def test_reads_are_repeated_too_for_a_limited_time(moody: Callable[..., ScriptedServer]) -> None:
    server = moody(HANG_UP, AWAY, COUNTS, AWAY, AWAY)
    with client(server, retries=Retries(attempts=3)) as one:
        assert one.get_queue_counts() == {"pending": 1}
    with client(server, retries=Retries(attempts=2)) as one, pytest.raises(StoreUnavailable) as gone:
        one.get_queue_counts()
    assert gone.value.message == "away"
    assert server.script == []


async def test_the_async_client_repeats_in_the_same_way(moody: Callable[..., ScriptedServer]) -> None:
    server = moody(BUSY, HANG_UP, COUNTS)
    async with AsyncClient(server.url, "key") as one:
        assert await one.get_queue_counts() == {"pending": 1}
    assert len(server.asked) == 3


def test_connections_are_reused_and_closed_ones_are_detected(moody: Callable[..., ScriptedServer]) -> None:
    server = moody(COUNTS, COUNTS, (200, {"Connection": "close"}, b"{}"), COUNTS)
    with client(server) as one:
        for _ in range(4):
            one.get_queue_counts()
    assert len(server.connections) == 2


def test_a_service_that_is_not_running_is_unreachable(moody: Callable[..., ScriptedServer]) -> None:
    server = moody()
    server.server_close()
    with client(server, retries=Retries(attempts=1)) as one, pytest.raises(ServiceUnreachable) as error:
        one.get_queue_counts()
    assert "no response from 127.0.0.1" in str(error.value)


def test_over_tls_only_a_service_with_a_valid_certificate_is_called(
    moody: Callable[..., ScriptedServer],
) -> None:
    authority = trustme.CA()
    server = moody(COUNTS, COUNTS)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    url = server.url.replace("http:", "https:")
    ours = ssl.create_default_context()
    authority.configure_trust(ours)
    with Client(url, "key", tls=ours) as one:
        assert one.get_queue_counts() == {"pending": 1}
    with (
        Client(url, "key", retries=Retries(attempts=1)) as one,
        pytest.raises(ServiceUnreachable, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        one.get_queue_counts()
    assert len(server.asked) == 1


def test_a_response_of_a_proxy_is_reported_unchanged(moody: Callable[..., ScriptedServer]) -> None:
    with client(moody(GATEWAY)) as one, pytest.raises(Exception, match="HTTP 502: <h1>Bad gateway") as error:
        one.get_queue_counts()
    assert getattr(error.value, "status", 0) == 502


def test_retry_after_is_the_minimum_delay_and_a_long_one_ends_the_retries() -> None:
    asked = PreparedRequest(method="GET", target="/", headers={}, body=None, repeatable=True)
    retries = Retries(attempts=4, longest_wait_s=30)

    def wait(attempt: int, headers: dict[str, str]) -> float | None:
        return retries.wait_s(asked, attempt, Response(503, headers, b""), 0.5)

    assert wait(1, {"retry-after": "7"}) == pytest.approx(7.1)
    assert [wait(n, {}) for n in (1, 2, 3, 4)] == [
        pytest.approx(0.1),
        pytest.approx(0.2),
        pytest.approx(0.4),
        None,
    ]
    assert wait(1, {"retry-after": "31"}) is None
    assert wait(1, {"retry-after": "soon"}) == pytest.approx(0.1)
    assert retries.wait_s(asked, 1, Response(500, {}, b""), 0.5) is None


def test_invalid_settings_are_refused() -> None:
    for url in ("127.0.0.1:8080", "ftp://example.org", "http://"):
        with pytest.raises(ConfigError, match="url"):
            Client(url, "key")
    with pytest.raises(ConfigError, match="key: has characters"):
        Client("http://127.0.0.1:1", "key\n")
    with pytest.raises(ConfigError, match="connections"):
        Client("http://127.0.0.1:1", "key", connections=0)
    with pytest.raises(ConfigError, match="attempts"):
        Retries(attempts=0)
