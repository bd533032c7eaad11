"""The application's limits under load: requests, bytes, time, and commits."""

from __future__ import annotations

import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from select import select
from typing import Any

from homing.api.settings import ServiceSettings
from homing.stores.sqlite.writer_thread import ThreadCall as Wish
from support.running_service import RunningService

Serve = Callable[..., RunningService]
MAIL = {"recipient": {"email": "ada@example.org"}, "channel": "email", "content": {"body": "hello"}}


@contextmanager
def half_sent(service: RunningService, sent: int, length: int) -> Iterator[socket.socket]:
    """A client that has sent part of a body of this length, and waits."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=60) as client:
        head = (
            "POST /api/v1/notifications/batch HTTP/1.1\r\nHost: homing\r\nAuthorization: Bearer default\r\n"
            f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        )
        client.sendall(head.encode() + b" " * sent)
        yield client


def test_the_memory_for_slow_bodies_is_limited_and_excess_requests_get_503(serve: Serve) -> None:
    service = serve(ServiceSettings(buffer_bytes=2_000_000), store="memory:")
    with ExitStack() as stack:
        clients = [stack.enter_context(half_sent(service, 150_000, 200_000)) for _ in range(100)]
        wait_until(lambda: len(select(clients, [], [], 0)[0]) + len(service.app.active_requests) == 100)
        assert 0 < service.app.active_requests.held_bytes <= 2_000_000
        assert service.call("GET", "/healthz").status == 200, "others are served meanwhile"
        answers = []
        for client in clients:
            client.sendall(b" " * 50_000)
            answers.append(client.recv(65_536))
    taken = [
        answer for answer in answers if b" 400 " in answer
    ]  # only blanks, which is invalid JSON once the body is complete
    assert 1 <= len(taken) <= 2_000_000 // 65_536
    told = [answer for answer in answers if b" 503 " in answer and b"retry-after: 1" in answer]
    assert len(taken) + len(told) == 100
    wait_until(lambda: len(service.app.active_requests) == 0)
    assert service.app.active_requests.held_bytes == 0


def test_requests_above_the_concurrency_limit_get_503(serve: Serve) -> None:
    service = serve(ServiceSettings(max_requests=3), store="memory:")
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(half_sent(service, 10, 100))
        wait_until(lambda: len(service.app.active_requests) == 3)
        refused = service.call("GET", "/healthz")
        assert (refused.status, refused.json["error"]["code"]) == (503, "OVERLOADED")
        assert refused.headers["retry-after"] == "1"
    wait_until(lambda: len(service.app.active_requests) == 0)
    assert service.call("GET", "/healthz").status == 200


def test_a_body_that_does_not_arrive_is_not_awaited(serve: Serve) -> None:
    service = serve(ServiceSettings(read_ms=50), store="memory:")
    with half_sent(service, 10, 100) as client:
        answer = b"".join(iter(lambda: client.recv(65_536), b""))  # until it is closed
        assert b" 408 " in answer
        assert b"REQUEST_TIMEOUT" in answer


def test_a_send_that_the_store_does_not_answer_in_time_gets_503(serve: Serve, tmp_path: Path) -> None:
    service = serve(store=str(tmp_path / "homing.db"), store_timeout_ms=50)
    assert service.call("POST", "/api/v1/notifications/send", MAIL).status == 202
    with _held(service, service.engine._backend._writer):  # type: ignore[attr-defined]
        refused = service.call("POST", "/api/v1/notifications/send", MAIL)
        assert (refused.status, refused.json["error"]["code"]) == (503, "STORE_UNAVAILABLE")
        assert refused.headers["retry-after"] == "1"
    assert service.call("POST", "/api/v1/notifications/send", MAIL).status == 202


def wait_until(condition: Callable[[], bool]) -> None:
    done = threading.Event()
    for _ in range(6_000):
        if condition():
            return
        done.wait(0.01)
    raise AssertionError("it did not come true")


def test_concurrent_requests_share_commits_and_each_gets_its_own_response(
    serve: Serve, tmp_path: Path
) -> None:
    service = serve(store=str(tmp_path / "homing.db"))
    writer = service.engine._backend._writer  # type: ignore[attr-defined]
    said: list[str] = []

    def send(_: int) -> int:
        return service.call("POST", "/api/v1/notifications/send", MAIL).status

    with ThreadPoolExecutor(64) as callers, _held(service, writer):
        writer._connection.set_trace_callback(said.append)
        answers = [callers.submit(send, number) for number in range(64)]
        wait_until(lambda: writer._calls.qsize() == 64)
    assert [answer.result() for answer in answers] == [202] * 64
    assert said.count("COMMIT") <= 3, "one for who was first, one for all who came meanwhile"
    with sqlite3.connect(tmp_path / "homing.db") as connection:
        assert connection.execute("SELECT count(*) FROM homing_notifications").fetchone() == (64,)
    connection.close()


@contextmanager
def _held(service: RunningService, writer: Any) -> Iterator[None]:
    """Keeps the store's writer busy, so that requests queue up."""
    entered, release = threading.Event(), threading.Event()

    def wait(_: sqlite3.Cursor) -> None:
        entered.set()
        assert release.wait(60)

    async def hold(_: Any) -> None:
        await writer.do(Wish(wait))

    with ThreadPoolExecutor(1) as holder:
        held = holder.submit(service.on_loop, hold)
        assert entered.wait(60)
        try:
            yield
        finally:
            release.set()
            held.result(60)
