"""The server under the application, over raw sockets: what a client may not make it do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from homing.api import server as module
from homing.api.server import Server, ServerSettings, listening

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
ASK = b"GET / HTTP/1.1\r\nHost: homing\r\n\r\n"


class Answers:
    """An application that answers when it is told to."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.body = b"yes"

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked.set()
        await self.may_answer.wait()
        headers = [(b"content-length", b"%d" % len(self.body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


@asynccontextmanager
async def serving(app: Answers, **settings: Any) -> AsyncIterator[tuple[Server, Callable[[], Any]]]:
    server = Server(app, ServerSettings(**settings))
    at = listening("127.0.0.1", 0)
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
    """All that comes until the other side closes."""
    async with asyncio.timeout(60):
        return await reader.read()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def refusal(status: int, headers: dict[str, str], body: bytes) -> tuple[int, str]:
    assert headers["connection"] == "close"
    return status, json.loads(body)["error"]["code"]


async def test_a_connection_answers_one_request_after_the_other_and_does_not_name_the_server() -> None:
    async with serving(Answers()) as (_, connect):
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
async def test_who_takes_too_long_to_ask_is_told_so_and_let_go(before: bytes) -> None:
    async with serving(Answers(), head_ms=2_000) as (server, connect):
        reader, writer = await connect()
        if before:
            writer.write(before)
            await answered(reader)
        writer.write(b"GET / HTTP/1.1\r\nX-Slow: ")
        assert refusal(*await answered(reader)) == (408, "REQUEST_TIMEOUT")
        assert await ended(reader) == b""
        assert not server.server_state.connections


@pytest.mark.usefixtures("look_often")
async def test_who_says_nothing_at_all_is_let_go_and_who_waits_for_an_answer_is_not() -> None:
    app = Answers()
    app.may_answer.clear()
    async with serving(app, head_ms=2_000) as (_, connect):
        asking, asker = await connect()
        asker.write(ASK)
        silent, _ = await connect()
        assert await ended(silent) == b""
        app.may_answer.set()
        assert (await answered(asking))[0] == 200


@pytest.mark.usefixtures("look_often")
async def test_who_never_reads_its_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LONGEST_ANSWER_S", 0.05)
    app = Answers()
    app.body = b"x" * 20_000_000
    async with serving(app) as (server, connect):
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
async def test_a_head_without_end_is_refused(head: bytes) -> None:
    async with serving(Answers()) as (_, connect):
        reader, writer = await connect()
        writer.write(head)
        assert refusal(*await answered(reader)) == (431, "MALFORMED_REQUEST")


@pytest.mark.parametrize("garbage", [b"\x16\x03\x01\x02\x00", b"GET / HTTP/1.1\r\nBad Header\r\n\r\n"])
async def test_what_is_not_http_is_refused_in_the_shape_of_all_errors(garbage: bytes) -> None:
    async with serving(Answers()) as (_, connect):
        reader, writer = await connect()
        writer.write(garbage)
        assert refusal(*await answered(reader)) == (400, "MALFORMED_REQUEST")


async def test_beyond_the_bound_a_connection_is_told_to_come_again() -> None:
    async with serving(Answers(), max_connections=2) as (_, connect):
        for _ in range(2):
            reader, writer = await connect()
            writer.write(ASK)
            await answered(reader)
        reader, _ = await connect()
        status, headers, body = await answered(reader)
        assert refusal(status, headers, body) == (503, "OVERLOADED")
        assert headers["retry-after"] == "1"


async def test_a_stop_takes_no_more_and_lets_what_is_under_way_end() -> None:
    app = Answers()
    app.may_answer.clear()
    async with serving(app) as (server, connect):
        reader, writer = await connect()
        writer.write(ASK)
        await app.asked.wait()
        server.stop()
        await until(lambda: not server.servers[0].is_serving())
        assert server.under_way == 1
        app.may_answer.set()
        status, headers, _ = await answered(reader)
        assert (status, headers["connection"]) == (200, "close")
