"""The server below the application, over raw sockets: what a client cannot make it do."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from homing.http_server import server as module
from homing.http_server.server import ClientConnection, HttpServer, open_listener, open_listeners
from homing.http_server.settings import ServerSettings

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
ASK = b"GET / HTTP/1.1\r\nHost: homing\r\n\r\n"


class RecordingApp:
    """An application that responds when the test allows it, and records paths, headers and bodies."""

    def __init__(self, *, reads: bool = True) -> None:
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.body = b"yes"
        self.reads = reads
        """Whether it reads a request's body before it responds."""
        self.paths: list[str] = []
        self.headers: list[tuple[bytes, bytes]] = []
        self.received = b""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked.set()
        self.paths.append(scope["path"])
        while self.reads:
            message = await receive()
            self.received += message.get("body", b"")
            if not message.get("more_body"):
                break
        await self.may_answer.wait()
        self.headers = scope["headers"]
        headers = [(b"content-length", b"%d" % len(self.body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


@asynccontextmanager
async def serving(app: RecordingApp, **settings: Any) -> AsyncIterator[tuple[HttpServer, Callable[[], Any]]]:
    server = HttpServer(app, ServerSettings(**settings))
    at = open_listener("127.0.0.1", 0)
    port = at.getsockname()[1]
    task = asyncio.create_task(server.serve([at]))
    opened: list[asyncio.StreamWriter] = []

    async def connect() -> Streams:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        opened.append(writer)
        return reader, writer

    try:
        yield server, connect
    finally:
        server.stop(hard=True)
        for writer in opened:
            writer.close()
        await task


async def answered(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    async with asyncio.timeout(60):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        return int(head[0].split()[1]), headers, await reader.readexactly(int(headers["content-length"]))


async def ended(reader: asyncio.StreamReader) -> bytes:
    """Reads until the other side closes."""
    async with asyncio.timeout(60):
        return await reader.read()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def only_connection(server: HttpServer) -> ClientConnection:
    (found,) = server.server_state.connections
    assert isinstance(found, ClientConnection)
    return found


def refusal(status: int, headers: dict[str, str], body: bytes) -> tuple[int, str]:
    assert headers["connection"] == "close"
    return status, json.loads(body)["error"]["code"]


async def test_a_connection_serves_several_requests_and_does_not_name_the_server() -> None:
    async with serving(RecordingApp()) as (_, connect):
        reader, writer = await connect()
        for _ in range(3):
            writer.write(ASK)
            status, headers, body = await answered(reader)
            assert (status, body) == (200, b"yes")
            assert "server" not in headers


@pytest.fixture
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SWEEP_S", 0.0)


@pytest.mark.usefixtures("look_often")
@pytest.mark.parametrize("before", [b"", ASK], ids=["first", "later"])
async def test_a_client_that_is_too_slow_with_its_request_gets_408(before: bytes) -> None:
    async with serving(RecordingApp(), head_ms=2_000) as (server, connect):
        reader, writer = await connect()
        if before:
            writer.write(before)
            await answered(reader)
        writer.write(b"GET / HTTP/1.1\r\nX-Slow: ")
        assert refusal(*await answered(reader)) == (408, "REQUEST_TIMEOUT")
        assert await ended(reader) == b""
        assert not server.server_state.connections


@pytest.mark.usefixtures("look_often")
async def test_a_silent_client_is_disconnected_but_not_one_that_waits_for_a_response() -> None:
    app = RecordingApp()
    app.may_answer.clear()
    async with serving(app, head_ms=2_000) as (_, connect):
        asking, asker = await connect()
        asker.write(ASK)
        silent, _ = await connect()
        assert await ended(silent) == b""
        app.may_answer.set()
        assert (await answered(asking))[0] == 200


@pytest.mark.usefixtures("look_often")
async def test_an_idle_connection_is_closed_after_a_while() -> None:
    async with serving(RecordingApp(), keep_alive_ms=50) as (server, connect):
        reader, writer = await connect()
        writer.write(ASK)
        assert (await answered(reader))[0] == 200
        assert await ended(reader) == b""
        assert not server.server_state.connections


@pytest.mark.usefixtures("look_often")
async def test_a_client_that_never_reads_its_response_is_disconnected() -> None:
    app = RecordingApp()
    app.body = b"x" * 20_000_000
    async with serving(app, write_ms=50) as (server, connect):
        _, writer = await connect()
        writer.transport.pause_reading()
        writer.write(ASK)
        await app.asked.wait()
        await until(lambda: not server.server_state.connections)


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\n" + b"X-Long: " + b"x" * 200_000,
        b"GET / HTTP/1.1\r\n" + b"X-Many: x\r\n" * 10_000,
        b"GET / HTTP/1.1\r\n" + b"X-Long: " + b"x" * 40_000 + b"\r\n\r\n",
        b"GET /" + b"x" * 200_000,
    ],
    ids=["long", "many", "whole", "path"],
)
async def test_a_request_head_above_the_limit_is_refused(head: bytes) -> None:
    async with serving(RecordingApp()) as (_, connect):
        reader, writer = await connect()
        writer.write(head)
        assert refusal(*await answered(reader)) == (431, "MALFORMED_REQUEST")


@pytest.mark.parametrize("garbage", [b"\x16\x03\x01\x02\x00", b"GET / HTTP/1.1\r\nBad Header\r\n\r\n"])
async def test_a_request_that_is_not_http_is_refused_with_the_common_error_format(garbage: bytes) -> None:
    async with serving(RecordingApp()) as (_, connect):
        reader, writer = await connect()
        writer.write(garbage)
        assert refusal(*await answered(reader)) == (400, "MALFORMED_REQUEST")


async def test_connections_above_the_limit_get_503() -> None:
    async with serving(RecordingApp(), max_connections=2) as (_, connect):
        for _ in range(2):
            reader, writer = await connect()
            writer.write(ASK)
            await answered(reader)
        reader, _ = await connect()
        status, headers, body = await answered(reader)
        assert refusal(status, headers, body) == (503, "OVERLOADED")
        assert headers["retry-after"] == "1"


async def test_a_stop_accepts_nothing_new_and_finishes_running_requests() -> None:
    app = RecordingApp()
    app.may_answer.clear()
    async with serving(app) as (server, connect):
        reader, writer = await connect()
        writer.write(ASK)
        await app.asked.wait()
        server.stop()
        await until(lambda: not server.servers[0].is_serving())
        assert server.active_requests == 1
        app.may_answer.set()
        status, headers, _ = await answered(reader)
        assert (status, headers["connection"]) == (200, "close")


# Bytes after the head ---------------------------------------------------------------------------------

CHUNKED = (
    b"POST / HTTP/1.1\r\nHost: homing\r\nAuthorization: Bearer mine\r\nTransfer-Encoding: chunked\r\n\r\n"
)


async def test_trailers_are_dropped_and_change_no_header() -> None:
    app = RecordingApp()
    async with serving(app) as (_, connect):
        reader, writer = await connect()
        trailers = b"Authorization: Bearer other\r\nContent-Type: text/plain\r\nX-Sum: 1\r\n"
        writer.write(CHUNKED + b"4\r\nbody\r\n0\r\n" + trailers + b"\r\n")
        assert (await answered(reader))[0] == 200
        assert app.received == b"body"
        assert dict(app.headers)[b"authorization"] == b"Bearer mine"
        assert {name for name, _ in app.headers} == {b"host", b"authorization", b"transfer-encoding"}
        writer.write(ASK)
        assert (await answered(reader))[0] == 200, "the connection goes on"


@pytest.mark.parametrize(
    ("before", "endless", "after"),
    [
        (b"0\r\n", b"X-Trailer: x\r\n", b"\r\n"),
        (b"0\r\nX-Trailer: ", b"x", b"\r\n\r\n"),
        (b"0\r\nX", b"x", b": x\r\n\r\n"),
        (b"1;", b"x", b"\r\nb\r\n0\r\n\r\n"),
        (b"1;x=", b"x", b"\r\nb\r\n0\r\n\r\n"),
        (b"", b"0", b"1\r\nb\r\n0\r\n\r\n"),
    ],
    ids=["many", "long value", "long name", "extension", "extension value", "zeros"],
)
async def test_the_overhead_of_chunked_bodies_is_limited(before: bytes, endless: bytes, after: bytes) -> None:
    async with serving(RecordingApp()) as (server, connect):
        reader, writer = await connect()
        writer.write(CHUNKED + before + endless * (1_000_000 // len(endless)) + after)
        assert refusal(*await answered(reader)) == (400, "MALFORMED_REQUEST")
        await until(lambda: not server.server_state.connections)


async def test_a_body_in_the_smallest_chunks_is_complete() -> None:
    app = RecordingApp()
    async with serving(app) as (_, connect):
        reader, writer = await connect()
        writer.write(CHUNKED + b"1\r\nb\r\n" * 50_000 + b"0\r\n\r\n")
        assert (await answered(reader))[0] == 200
        assert app.received == b"b" * 50_000


# Ambiguous request heads ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lines",
    [
        b"Authorization: Bearer a\r\nAuthorization: Bearer b\r\n",
        b"Authorization: Bearer a\r\nX: y\r\nauthorization: Bearer a\r\n",
        b"Host: other\r\n",
        b"Content-Type: application/json\r\nContent-Type: text/plain\r\n",
        b"Content-Encoding: gzip\r\nContent-Encoding: identity\r\n",
        b"Idempotency-Key: a\r\nIdempotency-Key: b\r\n",
        b"Content-Length: 0\r\nContent-Length: 0\r\n",
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Transfer-Encoding: identity\r\n",
        b"Content-Length: +5\r\n",
        b"Content-Length: 5, 5\r\n",
        b"Content-Length: 99999999999999999999\r\n",
        b"X-Folded: a\r\n Authorization: Bearer b\r\n",
        b"X-Nul: a\x00b\r\n",
        b"X-Bare: a\rAuthorization: Bearer b\r\n",
        b"X-Blank : a\r\n",
    ],
    ids=lambda lines: lines.decode("latin-1").replace("\r\n", " ").replace("\0", "NUL"),
)
async def test_a_head_that_a_proxy_may_read_differently_is_refused(lines: bytes) -> None:
    app = RecordingApp(reads=False)
    async with serving(app) as (_, connect):
        reader, writer = await connect()
        writer.write(b"POST / HTTP/1.1\r\nHost: homing\r\n" + lines + b"\r\n")
        assert refusal(*await answered(reader)) == (400, "MALFORMED_REQUEST")
        assert app.paths == []


async def test_chunked_bodies_in_http_1_0_are_refused() -> None:
    async with serving(RecordingApp()) as (_, connect):
        reader, writer = await connect()
        writer.write(b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
        assert refusal(*await answered(reader)) == (400, "MALFORMED_REQUEST")


async def test_an_ordinary_header_may_be_repeated() -> None:
    async with serving(RecordingApp()) as (_, connect):
        reader, writer = await connect()
        writer.write(ASK[:-2] + b"Accept: a/b\r\nAccept: c/d\r\nVia: 1.1 a\r\nVia: 1.1 b\r\n\r\n")
        assert (await answered(reader))[0] == 200


@pytest.mark.parametrize(
    ("more", "end", "status"),
    [(99, b"\r\n", 200), (100, b"\r\n", 431), (5_000, b"\r\n", 431), (5_000, b"", 431)],
)
async def test_the_number_of_headers_is_limited(more: int, end: bytes, status: int) -> None:
    async with serving(RecordingApp()) as (_, connect):
        reader, writer = await connect()
        writer.write(ASK[:-2] + b"a:\r\n" * more + end)
        assert (await answered(reader))[0] == status


@pytest.mark.parametrize("pad", [b"", b"\r\n" * 20], ids=["first", "after line breaks"])
@pytest.mark.parametrize(("length", "status"), [(30_000, 200), (40_000, 431), (250_000, 431)])
async def test_a_head_has_the_same_limit_at_any_position_of_the_stream(
    pad: bytes, length: int, status: int
) -> None:
    async with serving(RecordingApp()) as (_, connect):
        reader, writer = await connect()
        writer.write(ASK)
        assert (await answered(reader))[0] == 200
        writer.write(pad + ASK[:-2] + b"X-Long: " + b"x" * length + b"\r\n\r\n")
        assert (await answered(reader))[0] == status


# Upgrades and pipelines -------------------------------------------------------------------------------

UPGRADE = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"


async def test_an_offer_to_upgrade_is_ignored_and_the_next_request_is_answered() -> None:
    app = RecordingApp()
    async with serving(app) as (_, connect):
        reader, writer = await connect()
        writer.write(b"GET /a HTTP/1.1\r\nHost: homing\r\n" + UPGRADE + b"\r\n" + ASK)
        assert [(await answered(reader))[0] for _ in range(2)] == [200, 200]
        assert app.paths == ["/a", "/"]


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_body_after_an_offer_to_upgrade_is_not_a_second_request(at_once: bool) -> None:
    app = RecordingApp()
    async with serving(app) as (_, connect):
        reader, writer = await connect()
        inner = b"GET /inner HTTP/1.1\r\nHost: homing\r\n\r\n"
        head = b"POST / HTTP/1.1\r\nHost: homing\r\nContent-Length: %d\r\n" % len(inner) + UPGRADE + b"\r\n"
        writer.write(head + inner if at_once else head)
        assert refusal(*await answered(reader)) == (400, "MALFORMED_REQUEST")
        with suppress(ConnectionError):
            writer.write(inner)
            assert await ended(reader) == b""
        assert app.paths == []


async def test_connect_is_refused() -> None:
    async with serving(RecordingApp()) as (_, connect):
        reader, writer = await connect()
        writer.write(b"CONNECT /x HTTP/1.1\r\nHost: homing\r\n\r\n")
        assert refusal(*await answered(reader)) == (400, "MALFORMED_REQUEST")


async def test_pipelined_requests_are_answered_in_order() -> None:
    app = RecordingApp()
    async with serving(app) as (_, connect):
        reader, writer = await connect()
        writer.write(b"".join(b"GET /%d HTTP/1.1\r\nHost: homing\r\n\r\n" % number for number in range(20)))
        for _ in range(20):
            assert (await answered(reader))[0] == 200
        assert app.paths == [f"/{number}" for number in range(20)]


async def test_an_endless_pipeline_is_not_queued() -> None:
    app = RecordingApp()
    app.may_answer.clear()
    async with serving(app) as (server, connect):
        reader, writer = await connect()
        writer.write(b"GET / HTTP/1.1\r\n\r\n" * 10_000)
        with suppress(ConnectionError):  # a reset, because much of what was sent was never read
            assert await ended(reader) == b"", "the first request has no answer yet, so no other is answered"
        await until(lambda: not server.server_state.connections)
        assert app.paths == ["/"]
        app.may_answer.set()


async def test_a_request_after_an_unanswered_one_is_not_answered_in_its_place() -> None:
    app = RecordingApp()
    app.may_answer.clear()
    async with serving(app) as (server, connect):
        reader, writer = await connect()
        writer.write(ASK + b"no HTTP at all\r\n\r\n")
        await app.asked.wait()
        writer.write(ASK)
        await until(lambda: only_connection(server)._ends)
        app.may_answer.set()
        status, headers, _ = await answered(reader)
        assert (status, headers["connection"]) == (200, "close")
        with suppress(ConnectionError):
            assert await ended(reader) == b""
        assert app.paths == ["/"]


# Connections held open --------------------------------------------------------------------------------


@pytest.mark.usefixtures("look_often")
@pytest.mark.parametrize("late", [b"\r\n", b"\r\n\r\n\r\n", b"G", b"GET / HTTP/1.1\r\n"])
async def test_any_byte_after_a_response_starts_the_timeout_of_a_head(late: bytes) -> None:
    async with serving(RecordingApp(), head_ms=50) as (server, connect):
        reader, writer = await connect()
        writer.write(ASK)
        await answered(reader)
        writer.write(late)
        await ended(reader)
        await until(lambda: not server.server_state.connections)


@pytest.mark.usefixtures("look_often")
@pytest.mark.parametrize("drop", [b"\r\n", b"x"])
async def test_a_head_that_arrives_byte_by_byte_gets_no_extra_time(drop: bytes) -> None:
    async with serving(RecordingApp(), head_ms=50) as (server, connect):
        reader, writer = await connect()
        writer.write(ASK)
        await answered(reader)
        writer.write(drop if drop.isspace() else b"GET / HTTP/1.1\r\nX: ")
        async with asyncio.timeout(20):
            while server.server_state.connections:
                writer.write(drop)
                await asyncio.sleep(0.005)


@pytest.mark.usefixtures("look_often")
async def test_the_rest_of_a_body_that_was_answered_early_is_awaited_for_a_limited_time() -> None:
    async with serving(RecordingApp(reads=False), head_ms=50) as (server, connect):
        reader, writer = await connect()
        writer.write(b"POST / HTTP/1.1\r\nHost: homing\r\nContent-Length: 1000000000\r\n\r\n")
        assert (await answered(reader))[0] == 200
        async with asyncio.timeout(20):
            while server.server_state.connections:
                writer.write(b"x")
                await asyncio.sleep(0.005)
        with suppress(ConnectionError):
            assert await ended(reader) == b"", "there is no second answer"


@pytest.mark.parametrize(
    ("end", "then"),
    [
        (b"e", b"GET /next HTTP/1.1\r\nHost: homing\r\n\r\n"),
        (b"eGET /next HTTP/1.1\r\n", b"Host: homing\r\n\r\n"),
    ],
    ids=["before the next head", "together with half of the next head"],
)
async def test_after_the_rest_of_a_body_that_was_answered_early_the_connection_continues(
    end: bytes, then: bytes
) -> None:
    app = RecordingApp(reads=False)
    async with serving(app) as (server, connect):
        reader, writer = await connect()
        writer.write(b"POST / HTTP/1.1\r\nHost: homing\r\nContent-Length: 3\r\n\r\nh")
        assert (await answered(reader))[0] == 200
        connection = only_connection(server)
        writer.write(b"l")
        await until(lambda: connection.waits_since is not None)
        assert connection.idle_since is None
        writer.write(end)
        await until(lambda: not connection._in_message)
        waits_for_a_head = end != b"e"
        assert (connection.waits_since is not None) is waits_for_a_head
        assert (connection.idle_since is None) is waits_for_a_head
        writer.write(then)
        assert (await answered(reader))[0] == 200
        assert app.paths == ["/", "/next"]


async def test_half_a_head_after_a_request_has_its_timeout_from_the_response_on() -> None:
    app = RecordingApp()
    app.may_answer.clear()
    async with serving(app) as (server, connect):
        reader, writer = await connect()
        writer.write(ASK + ASK[:10])
        await app.asked.wait()
        connection = only_connection(server)
        much_later = asyncio.get_running_loop().time() + 1_000
        connection.enforce_timeouts(much_later, 10, 10, 10)
        connection.enforce_timeouts(much_later + 9, 10, 10, 10)
        app.may_answer.set()
        assert (await answered(reader))[0] == 200
        writer.write(ASK[10:])
        assert (await answered(reader))[0] == 200


# Addresses -------------------------------------------------------------------------------------------

ELSEWHERE = "192.0.2.1"
"""An address for documentation, which no machine has."""


def test_an_address_that_this_machine_does_not_have_is_skipped() -> None:
    (listener,) = open_listeners([ELSEWHERE, "127.0.0.1"], 0)
    with listener:
        assert listener.getsockname()[0] == "127.0.0.1"


def test_a_machine_without_any_of_the_addresses_cannot_listen() -> None:
    with pytest.raises(OSError, match="Cannot assign") as caught:
        open_listeners([ELSEWHERE], 0)
    assert caught.value.errno == errno.EADDRNOTAVAIL


def test_if_one_address_is_in_use_the_others_are_closed_again() -> None:
    with open_listener("127.0.0.2", 0) as other:
        port = other.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            open_listeners(["127.0.0.1", "127.0.0.2"], port)
        open_listener("127.0.0.1", port).close()
