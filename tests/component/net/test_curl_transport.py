"""The HTTP client with a misbehaving server, over real sockets."""

from __future__ import annotations

import asyncio
import gc
import ssl
import sys
from pathlib import Path

import pytest
import trustme

from homing.net.curl_transfer import MAX_RESPONSE_BYTES
from homing.net.http_client import CurlTransport
from homing.net.http_messages import HttpRequest, HttpResponse, TransportFailure
from homing.testing import fault_server
from homing.testing.fault_server import FaultServer, ServerAction
from support.event_loops import LoopKind

BIG = b"x" * 20_000_000
"""More than the buffers of both kernels hold."""


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="session")
def ca_file(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("ca") / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return str(path)


def tls_for(authority: trustme.CA, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return context


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def request(url: str, body: bytes = b'{"a":1}', **options: object) -> HttpRequest:
    return HttpRequest(url=url, body=body, headers=(("Content-Type", "application/json"),), **options)  # type: ignore[arg-type]


async def failure(transport: CurlTransport, asked: HttpRequest, timeout_ms: int = 60_000) -> TransportFailure:
    answer = await transport.send(asked, timeout_ms=timeout_ms)
    assert isinstance(answer, TransportFailure), answer
    return answer


async def answered(transport: CurlTransport, asked: HttpRequest, timeout_ms: int = 60_000) -> HttpResponse:
    answer = await transport.send(asked, timeout_ms=timeout_ms)
    assert isinstance(answer, HttpResponse), answer
    return answer


# Requests and responses ------------------------------------------------------------------------


async def test_a_request_arrives_as_it_was_built(server: FaultServer, transport: CurlTransport) -> None:
    asked = HttpRequest(
        url=f"{server.url}/v1/x?y=%20z", body=b"\x00\xff body", headers=(("X-One", "1"), ("X-Empty", ""))
    )
    assert (await answered(transport, asked)).body == b"ok"
    [got] = server.received
    assert (got.method, got.path, got.body) == ("POST", "/v1/x?y=%20z", b"\x00\xff body")
    assert got.headers["x-one"] == "1"
    assert got.headers["x-empty"] == ""
    assert got.headers["user-agent"] == "homing"
    assert {"expect", "content-type", "cookie", "accept-encoding", "authorization"}.isdisjoint(got.headers)


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH"])
async def test_every_method_is_sent_by_its_name(
    server: FaultServer, transport: CurlTransport, method: str
) -> None:
    server.play(fault_server.answer(204), fault_server.answer(204))
    for one in (method, "POST"):  # and nothing remains on the curl handle
        body = b"" if one in ("GET", "HEAD") else b"b"
        assert (await answered(transport, request(server.url, body, method=one))).status == 204
    assert [got.method for got in server.received] == [method, "POST"]
    assert server.received[-1].body == b"b"


async def test_header_names_are_lower_case_and_the_last_of_repeated_ones_counts(
    server: FaultServer, transport: CurlTransport
) -> None:
    server.play(
        ServerAction(writes=b"HTTP/1.1 202 Yes\r\nX-Id: a\r\nX-ID: b\xe9\r\nContent-Length: 0\r\n\r\n")
    )
    answer = await answered(transport, request(server.url))
    assert (answer.status, answer.headers["x-id"]) == (202, "bé")


async def test_a_response_after_a_provisional_one_is_returned(
    server: FaultServer, transport: CurlTransport
) -> None:
    server.play(fault_server.after_continue(fault_server.answer(201, b"made", {"x-a": "1"})))
    answer = await answered(transport, request(server.url))
    assert (answer.status, answer.body, answer.headers["x-a"]) == (201, b"made", "1")


async def test_a_redirect_is_returned_and_not_followed(server: FaultServer, transport: CurlTransport) -> None:
    server.play(fault_server.answer(302, headers={"location": f"{server.url}/elsewhere"}))
    assert (await answered(transport, request(server.url))).status == 302
    assert len(server.received) == 1


async def test_proxy_variables_of_the_environment_are_ignored(
    server: FaultServer, transport: CurlTransport, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, fault_server.refusing_url())
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login spy password secret\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    server.play(fault_server.answer(200, headers={"set-cookie": "a=b"}))
    await answered(transport, request(server.url))
    await answered(transport, request(server.url))
    assert all({"authorization", "cookie"}.isdisjoint(got.headers) for got in server.received)


async def test_connections_are_reused(server: FaultServer, transport: CurlTransport) -> None:
    for _ in range(20):
        await answered(transport, request(server.url))
    assert server.connections == 1


async def test_sequential_senders_next_to_others_each_get_their_own_response(
    server: FaultServer, transport: CurlTransport
) -> None:
    """Curl handles are reused: a response must never reach another request."""

    async def send_some(who: int) -> None:
        for number in range(60):
            server_path = f"{server.url}/{who}/{number}"
            assert (await answered(transport, request(server_path))).body == b"ok"

    async with asyncio.timeout(60):
        await asyncio.gather(*(send_some(who) for who in range(8)))
    assert len({got.path for got in server.received}) == len(server.received) == 480


async def test_the_number_of_connections_to_a_host_is_limited(server: FaultServer) -> None:
    transport = CurlTransport(max_host_connections=3)
    await asyncio.gather(*(answered(transport, request(server.url)) for _ in range(50)))
    await transport.close()
    assert server.connections <= 3
    assert len(server.received) == 50


async def test_waiting_for_a_connection_counts_towards_the_timeout(server: FaultServer) -> None:
    transport = CurlTransport(max_host_connections=1)
    server.play(fault_server.HANG_AFTER_READING)
    first = asyncio.create_task(transport.send(request(server.url), timeout_ms=60_000))
    await server.wait_for_requests(1)
    missed = await failure(transport, request(server.url), timeout_ms=100)
    await transport.close()
    await first
    assert (missed.code, missed.written) == ("timeout", False)


async def test_a_request_that_has_just_started_ends_when_the_transport_closes_or_its_caller_leaves(
    server: FaultServer,
) -> None:
    transport = CurlTransport()
    await answered(transport, request(server.url))
    left = asyncio.create_task(transport.send(request(f"{server.url}/left"), timeout_ms=60_000))
    begun = asyncio.create_task(transport.send(request(f"{server.url}/begun"), timeout_ms=60_000))
    closing = asyncio.create_task(transport.close())
    await asyncio.sleep(0)
    left.cancel()
    async with asyncio.timeout(60):
        missed = await begun
        await asyncio.gather(left, closing, return_exceptions=True)
    assert isinstance(missed, TransportFailure)
    assert (missed.code, missed.written, left.cancelled()) == ("dropped", False, True)
    assert len(server.received) == 1


# Limits and invalid input ----------------------------------------------------------------------


async def test_a_response_is_truncated_at_its_limit(server: FaultServer, transport: CurlTransport) -> None:
    server.play(fault_server.huge_body())
    answer = await answered(transport, request(server.url))
    assert (answer.status, len(answer.body), answer.truncated) == (200, MAX_RESPONSE_BYTES, True)
    server.play(fault_server.answer(200, b"y" * MAX_RESPONSE_BYTES))
    answer = await answered(transport, request(server.url))
    assert (len(answer.body), answer.truncated) == (MAX_RESPONSE_BYTES, False)


async def test_compressed_responses_are_not_decompressed(
    server: FaultServer, transport: CurlTransport
) -> None:
    server.play(fault_server.answer(200, b"\x1f\x8b\x08 bomb", {"content-encoding": "gzip"}))
    assert (await answered(transport, request(server.url))).body == b"\x1f\x8b\x08 bomb"


async def test_a_truncated_body_keeps_the_status(server: FaultServer, transport: CurlTransport) -> None:
    server.play(fault_server.wrong_length(202, b"half", length=100))
    answer = await answered(transport, request(server.url))
    assert (answer.status, answer.body, answer.truncated) == (202, b"half", True)


async def test_a_body_beyond_its_content_length_is_ignored(
    server: FaultServer, transport: CurlTransport
) -> None:
    server.play(fault_server.wrong_length(200, b"ok and more", length=2))
    assert (await answered(transport, request(server.url))).body == b"ok"
    assert (await answered(transport, request(server.url))).body == b"ok"


async def test_a_slow_body_ends_at_the_timeout_and_keeps_the_status(
    server: FaultServer, transport: CurlTransport
) -> None:
    head = b"HTTP/1.1 503 Busy\r\nContent-Length: 1000\r\n\r\n"
    server.play(ServerAction(writes=head + b"a", then="hang"))
    answer = await answered(transport, request(server.url), timeout_ms=3_000)
    assert (answer.status, answer.body, answer.truncated) == (503, b"a", True)


async def test_a_slow_head_is_not_a_response(server: FaultServer, transport: CurlTransport) -> None:
    server.play(fault_server.drip(fault_server.OK, pause_ms=1_000))
    missed = await failure(transport, request(server.url), timeout_ms=3_000)
    assert (missed.code, missed.written) == ("timeout", True)


@pytest.mark.parametrize(
    ("act", "code"),
    [
        (fault_server.GARBAGE, "protocol"),
        (fault_server.HALF_A_HEAD, "dropped"),
        (fault_server.EMPTY, "dropped"),
        (fault_server.RESET_AFTER_READING, "dropped"),
        (ServerAction(writes=b"SSH-2.0-OpenSSH\r\n", then="close"), "protocol"),
        (ServerAction(writes=b"HTTP/9.9 999999 x\r\n\r\n", then="close"), "protocol"),
        (ServerAction(writes=b"HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n"), "protocol"),
        (ServerAction(writes=b"HTTP/1.1 20 OK\r\nContent-Length: 0\r\n\r\n", then="close"), "protocol"),
    ],
)
async def test_an_invalid_response_after_the_request_was_written_is_ambiguous(
    server: FaultServer, transport: CurlTransport, act: ServerAction, code: str
) -> None:
    server.play(act)
    missed = await failure(transport, request(server.url))
    assert (missed.code, missed.written) == (code, True)


async def test_invalid_chunks_keep_the_status(server: FaultServer, transport: CurlTransport) -> None:
    server.play(fault_server.CHUNKED_NONSENSE)
    answer = await answered(transport, request(server.url))
    assert (answer.status, answer.truncated) == (200, True)


async def test_endless_headers_are_aborted(server: FaultServer, transport: CurlTransport) -> None:
    server.play(ServerAction(writes=b"HTTP/1.1 200 OK\r\n" + b"X-A: " + b"a" * 2_000_000, then="close"))
    assert (await failure(transport, request(server.url))).written


# Whether the request was written ---------------------------------------------------------------


async def test_a_refused_connection_wrote_nothing(transport: CurlTransport) -> None:
    missed = await failure(transport, request(fault_server.refusing_url()))
    assert (missed.code, missed.written) == ("connect", False)


async def test_a_name_that_does_not_exist_wrote_nothing(transport: CurlTransport) -> None:
    missed = await failure(transport, request("http://nobody.invalid/"))
    assert (missed.code, missed.written) == ("dns", False)


async def test_a_silent_tls_server_wrote_nothing(server: FaultServer) -> None:
    server.on_connect = fault_server.HANG_BEFORE_READING
    transport = CurlTransport(connect_timeout_ms=150)
    missed = await failure(transport, request(server.url.replace("http:", "https:")))
    await transport.close()
    assert (missed.code, missed.written) == ("timeout", False)


async def test_a_plain_server_behind_https_wrote_nothing(
    server: FaultServer, transport: CurlTransport
) -> None:
    server.on_connect = ServerAction(writes=b"220 hello\r\n", then="close")
    missed = await failure(transport, request(server.url.replace("http:", "https:")))
    assert (missed.code, missed.written) == ("tls", False)


async def test_a_silent_server_is_ambiguous(server: FaultServer, transport: CurlTransport) -> None:
    server.play(fault_server.HANG_AFTER_READING)
    missed = await failure(transport, request(server.url), timeout_ms=3_000)
    assert (missed.code, missed.written) == ("timeout", True)
    assert len(server.received) == 1


async def test_a_request_half_written_at_the_timeout_counts_as_not_written(
    server: FaultServer, transport: CurlTransport
) -> None:
    server.play(fault_server.HANG_BEFORE_READING)
    missed = await failure(transport, request(server.url, BIG), timeout_ms=300)
    assert (missed.code, missed.written) == ("timeout", False)


async def test_a_request_half_written_when_the_connection_broke_counts_as_not_written(
    server: FaultServer, transport: CurlTransport
) -> None:
    server.play(fault_server.RESET_BEFORE_READING)
    missed = await failure(transport, request(server.url, BIG))
    assert (missed.code, missed.written) == ("dropped", False)


async def test_an_early_response_to_a_half_written_request_is_returned(
    server: FaultServer, transport: CurlTransport
) -> None:
    server.play(
        ServerAction(reads=False, writes=b"HTTP/1.1 413 Large\r\nContent-Length: 0\r\n\r\n", then="hang")
    )
    assert (await answered(transport, request(server.url, BIG))).status == 413


async def test_after_a_pooled_connection_breaks_a_written_request_is_not_repeated(
    server: FaultServer, transport: CurlTransport
) -> None:
    server.play(fault_server.OK, fault_server.RESET_AFTER_READING)
    await answered(transport, request(server.url))
    missed = await failure(transport, request(server.url))
    assert (missed.code, missed.written) == ("dropped", True)
    assert len(server.received) == 2, "libcurl must not have sent it a second time"
    server.play(fault_server.OK, fault_server.EMPTY)
    await answered(transport, request(server.url))
    assert (await failure(transport, request(server.url))).written
    assert len(server.received) == 4


async def test_a_pooled_connection_that_was_closed_meanwhile_is_not_used(
    server: FaultServer, transport: CurlTransport
) -> None:
    server.play(*[fault_server.CLOSE_AFTER_ANSWER] * 5)
    for _ in range(5):
        await answered(transport, request(server.url))
        await asyncio.sleep(0.01)  # the server's FIN is on its way
    assert len(server.received) == server.connections == 5


async def test_a_pooled_connection_that_breaks_during_a_request_is_replaced_once(
    server: FaultServer, transport: CurlTransport
) -> None:
    server.play(fault_server.OK, fault_server.RESET_BEFORE_READING)
    await answered(transport, request(server.url))
    await answered(transport, request(server.url, BIG))
    assert (len(server.refused), len(server.received)) == (1, 2)
    server.play(fault_server.RESET_BEFORE_READING, fault_server.RESET_BEFORE_READING)
    assert not (await failure(transport, request(server.url, BIG))).written
    assert (len(server.refused), len(server.received)) == (3, 2)


# Refused before writing ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "",
        "nonsense",
        "ftp://example.org/",
        "file:///etc/passwd",
        "http://",
        "http://exa mple.org/",
        "http://example.org/\r\nX: y",
        "http://example.org/\x00",
        "http://example.org\\@evil.example/",
        "http://exämple.org/",
        "http://example.org:99999/",
        "http://[::1/",
        "gopher://127.0.0.1/",
    ],
)
async def test_a_url_that_is_not_http_is_refused(transport: CurlTransport, url: str) -> None:
    missed = await failure(transport, request(url))
    assert (missed.code, missed.written) == ("bad_request", False)


@pytest.mark.parametrize(
    "header",
    [
        ("X-A", "b\r\nX-C: d"),
        ("X-A", "b\nX-C: d"),
        ("X-A", "b\x00"),
        ("X-A\r\nX-B", "c"),
        ("X A", "b"),
        ("", "b"),
        ("X-A", "日本"),
        ("X-A:", "b"),
    ],
)
async def test_headers_with_line_breaks_are_refused(
    server: FaultServer, transport: CurlTransport, header: tuple[str, str]
) -> None:
    missed = await failure(transport, HttpRequest(url=server.url, headers=(header,)))
    assert (missed.code, missed.written) == ("bad_request", False)
    assert server.connections == 0


async def test_a_method_with_line_breaks_is_refused(server: FaultServer, transport: CurlTransport) -> None:
    missed = await failure(transport, HttpRequest(url=server.url, method="GET / HTTP/1.1\r\nX: y"))
    assert (missed.code, missed.written) == ("bad_request", False)


async def test_failures_do_not_contain_the_url(transport: CurlTransport) -> None:
    for url in (f"{fault_server.refusing_url()}/services/T0/SECRET", "http://secret.invalid/", "x://secret"):
        missed = await failure(transport, request(url))
        assert "secret" not in repr(missed).lower()
    assert "SECRET" not in repr(request("https://h/SECRET"))


# TLS -------------------------------------------------------------------------------------------


async def test_a_certificate_of_a_known_authority_is_accepted(authority: trustme.CA, ca_file: str) -> None:
    async with FaultServer(tls=tls_for(authority, "localhost")) as server:
        transport = CurlTransport(ca_file=ca_file)
        assert (await answered(transport, request(server.url))).body == b"ok"
        await answered(transport, request(server.url))
        await transport.close()
        assert server.connections == 1


async def test_a_certificate_of_an_unknown_authority_is_refused(
    authority: trustme.CA, transport: CurlTransport
) -> None:
    async with FaultServer(tls=tls_for(authority, "localhost")) as server:
        missed = await failure(transport, request(server.url))
        assert (missed.code, missed.written) == ("tls", False)
        assert server.received == []


async def test_a_certificate_for_another_name_is_refused(authority: trustme.CA, ca_file: str) -> None:
    async with FaultServer(tls=tls_for(authority, "other.example")) as server:
        transport = CurlTransport(ca_file=ca_file)
        missed = await failure(transport, request(server.url))
        await transport.close()
        assert (missed.code, missed.written) == ("tls", False)


@pytest.mark.parametrize(
    ("act", "body", "written"),
    [
        (fault_server.RESET_AFTER_READING, b"b", True),
        (fault_server.EMPTY, b"b", True),
        (fault_server.RESET_BEFORE_READING, BIG, False),
    ],
)
async def test_over_tls_it_is_known_too_whether_the_request_was_written(
    authority: trustme.CA, ca_file: str, act: ServerAction, body: bytes, written: bool
) -> None:
    async with FaultServer(tls=tls_for(authority, "localhost")) as server:
        transport = CurlTransport(ca_file=ca_file)
        server.play(fault_server.OK, act, act)
        await answered(transport, request(server.url))
        assert (await failure(transport, request(server.url, body))).written is written
        await transport.close()
        assert len(server.received) == 1 + written


# Lifetime --------------------------------------------------------------------------------------


async def test_cancelling_ends_the_transfer(server: FaultServer, transport: CurlTransport) -> None:
    server.play(fault_server.HANG_AFTER_READING)
    task = asyncio.create_task(transport.send(request(server.url), timeout_ms=60_000))
    await server.wait_for_requests(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await answered(transport, request(server.url))).body == b"ok"


async def test_closing_ends_running_requests_and_leaves_nothing_open(server: FaultServer) -> None:
    gc.collect()
    before = open_files()
    transport = CurlTransport()
    await asyncio.gather(*(answered(transport, request(server.url)) for _ in range(10)))
    server.play(fault_server.HANG_AFTER_READING)
    task = asyncio.create_task(transport.send(request(server.url), timeout_ms=60_000))
    await server.wait_for_requests(11)
    await transport.close()
    await transport.close()
    missed = await task
    assert isinstance(missed, TransportFailure)
    assert missed.written
    await server.stop()
    gc.collect()
    assert open_files() < before  # the server's own socket is gone too


async def test_the_memory_of_a_large_body_is_released_once_it_is_sent(
    server: FaultServer, transport: CurlTransport
) -> None:
    body = bytes(200_000)
    held = sys.getrefcount(body)
    asked = request(server.url, body)
    await answered(transport, asked)
    del asked
    assert sys.getrefcount(body) == held


def test_each_event_loop_has_its_own_connections(loop_kind: LoopKind) -> None:
    transport = CurlTransport()

    async def use() -> int:
        async with FaultServer() as server:
            return (await answered(transport, request(server.url))).status

    assert loop_kind.run(use()) == 200
    assert loop_kind.run(use()) == 200  # the first loop is closed by now
    with asyncio.Runner(loop_factory=loop_kind.new) as runner:
        assert runner.run(use()) == 200
        runner.run(transport.close())
