"""The endpoint for scrapers and probes, which no misbehaving client can block."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from http import HTTPStatus

import pytest
import pytest_asyncio

from homing import Homing, compose
from homing.core.errors import ConfigError
from homing.http_server.listen_address import ListenAddress, parse_listen_address
from homing.settings import load_settings
from homing.telemetry import http_endpoint as module
from homing.telemetry.http_endpoint import MetricsEndpoint, PageResponse

BIG = b"x" * 20_000_000
"""More than the buffers of a socket hold."""


async def small() -> PageResponse:
    return PageResponse(b"ok\n")


async def big() -> PageResponse:
    return PageResponse(BIG)


async def broken() -> PageResponse:
    raise RuntimeError("no page today")


async def unwell() -> PageResponse:
    return PageResponse(b"{}", "application/json", HTTPStatus.SERVICE_UNAVAILABLE)


PAGES = {"/healthz": small, "/big": big, "/broken": broken, "/readyz": unwell}


@pytest_asyncio.fixture
async def served() -> AsyncIterator[MetricsEndpoint]:
    async with MetricsEndpoint(ListenAddress("127.0.0.1", 0), PAGES, client_s=60) as made:
        yield made


@pytest_asyncio.fixture
async def impatient() -> AsyncIterator[MetricsEndpoint]:
    """An endpoint with short timeouts for silent clients and for those that do not read."""
    async with MetricsEndpoint(ListenAddress("127.0.0.1", 0), PAGES, client_s=2) as made:
        yield made


async def connected(to: MetricsEndpoint) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = to.address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def exchange(to: MetricsEndpoint, said: bytes) -> bytes:
    """Returns the response to these bytes, up to the end of the connection."""
    reader, writer = await connected(to)
    try:
        writer.write(said)
        async with asyncio.timeout(60):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def get(to: MetricsEndpoint, path: str, method: str = "GET") -> tuple[int, bytes]:
    answer = await exchange(to, f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


async def test_a_page_is_found_by_its_path_whatever_the_query(served: MetricsEndpoint) -> None:
    assert await get(served, "/healthz") == (200, b"ok\n")
    assert await get(served, "/healthz?verbose=1") == (200, b"ok\n")
    assert await get(served, "/readyz") == (503, b"{}")
    assert (await get(served, "/"))[0] == 404
    assert (await get(served, "/healthz/../big"))[0] == 404


async def test_a_head_request_gets_the_length_without_the_body(served: MetricsEndpoint) -> None:
    answer = await exchange(served, b"HEAD /healthz HTTP/1.0\r\n\r\n")
    assert answer.endswith(b"\r\n\r\n")
    assert b"content-length: 3\r\n" in answer.lower()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE"])
async def test_only_get_and_head_are_allowed(served: MetricsEndpoint, method: str) -> None:
    assert (await get(served, "/healthz", method))[0] == 405


async def test_a_page_that_fails_is_a_500_without_a_reason(served: MetricsEndpoint) -> None:
    assert await get(served, "/broken") == (500, b"Internal Server Error\n")
    assert (await get(served, "/healthz"))[0] == 200


@pytest.mark.parametrize(
    "said",
    [
        b"hello\r\n\r\n",
        b"GET /healthz\r\n\r\n",
        b"GET healthz HTTP/1.1\r\n\r\n",
        b"GET /healthz HTTP/2\r\n\r\n",
        b"get /healthz HTTP/1.1\r\n\r\n",
        b"GET /h\x00z HTTP/1.1\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
    ],
)
async def test_an_invalid_request_is_refused(served: MetricsEndpoint, said: bytes) -> None:
    assert (await exchange(served, said)).startswith(b"HTTP/1.1 400 ")


async def test_a_request_head_above_the_limit_is_refused(served: MetricsEndpoint) -> None:
    for long in (b"a" * 100_000, b"a" * 8_200 + b"\r\n\r\n"):
        answer = await exchange(served, b"GET /healthz HTTP/1.1\r\nX: " + long)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 431 "), "empty if the rest was reset"
    assert (await get(served, "/healthz"))[0] == 200


async def test_a_client_with_no_request_or_half_a_request_is_disconnected(impatient: MetricsEndpoint) -> None:
    said = (b"", b"GET /healthz HTTP/1.1\r\n")
    nothing, half = await asyncio.gather(*(exchange(impatient, one) for one in said))
    assert nothing == b""
    assert half.startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("drop", [b"\r", b"x"])
async def test_a_head_that_arrives_byte_by_byte_gets_no_extra_time(
    impatient: MetricsEndpoint, drop: bytes
) -> None:
    _, writer = await connected(impatient)
    writer.write(b"GET /healthz HTTP/1.1\r\nX: ")
    await until(lambda: impatient.clients == 1)
    async with asyncio.timeout(20):
        while impatient.clients:
            writer.write(drop)
            await asyncio.sleep(0.005)
    assert (await get(impatient, "/healthz"))[0] == 200
    writer.transport.abort()


@pytest.mark.parametrize(
    "after",
    [b"", b"0\r\nX-Trailer: " + b"x" * 1_000_000, b"GET /healthz HTTP/1.1\r\n\r\n" * 10_000],
    ids=["nothing", "trailers", "requests"],
)
async def test_nothing_after_a_head_is_read_and_one_response_ends_the_connection(
    served: MetricsEndpoint, after: bytes
) -> None:
    reader, writer = await connected(served)
    writer.write(b"GET /healthz HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + after)
    answer = b""
    with suppress(ConnectionError):  # a reset, if much of what was sent was never read
        async with asyncio.timeout(20):
            while piece := await reader.read(65_536):
                answer += piece
    assert answer.count(b"HTTP/1.1 ") <= 1
    await until(lambda: served.clients == 0)
    assert (await get(served, "/healthz"))[0] == 200
    writer.transport.abort()


async def test_a_client_that_does_not_read_is_disconnected(impatient: MetricsEndpoint) -> None:
    reader, writer = await connected(impatient)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader._transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(b"GET /big HTTP/1.1\r\n\r\n")
    await until(lambda: impatient.clients == 1)
    await until(lambda: impatient.clients == 0)
    assert (await get(impatient, "/healthz"))[0] == 200
    writer.transport.abort()


async def test_a_large_page_reaches_a_client_that_reads_it(served: MetricsEndpoint) -> None:
    status, body = await get(served, "/big")
    assert (status, len(body)) == (200, len(BIG))


async def test_the_number_of_idle_clients_is_limited_and_they_time_out(impatient: MetricsEndpoint) -> None:
    idle = [await connected(impatient) for _ in range(3 * module._MAX_CLIENTS)]
    most = 0
    async with asyncio.timeout(60):
        while not most or impatient.clients:
            most = max(most, impatient.clients)
            await asyncio.sleep(0.01)
    assert most <= module._MAX_CLIENTS
    assert await get(impatient, "/healthz") == (200, b"ok\n")
    for _, writer in idle:
        writer.transport.abort()


async def test_closing_aborts_a_page_in_progress_without_an_error_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def endless() -> PageResponse:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    async with MetricsEndpoint(ListenAddress("127.0.0.1", 0), {"/endless": endless}) as made:
        reader, writer = await connected(made)
        writer.write(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")
        await begun.wait()
    assert ended.is_set()
    with suppress(ConnectionError):
        assert await asyncio.wait_for(reader.read(), 60) == b""
    writer.transport.abort()
    assert not caplog.records


async def test_a_host_name_is_resolved() -> None:
    async with MetricsEndpoint(ListenAddress("localhost", 0), PAGES) as made:
        assert await get(made, "/healthz") == (200, b"ok\n")


async def test_closing_disconnects_everybody() -> None:
    async with MetricsEndpoint(ListenAddress("127.0.0.1", 0), PAGES) as made:
        reader, writer = await connected(made)
        await until(lambda: made.clients == 1)
    with suppress(ConnectionError):
        assert await asyncio.wait_for(reader.read(), 60) == b""
    writer.transport.abort()


async def test_a_port_in_use_is_reported_as_such(served: MetricsEndpoint) -> None:
    listen = parse_listen_address(served.address, "metrics.listen")
    with pytest.raises(ConfigError, match=r"metrics\.listen: cannot listen on 127\.0\.0\.1:\d+: "):
        async with MetricsEndpoint(listen, PAGES):
            pass


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("9464", "127.0.0.1", 9464),
        ("127.0.0.1:9464", "127.0.0.1", 9464),
        ("localhost:0", "localhost", 0),
        ("0.0.0.0:80", "0.0.0.0", 80),
        ("[::1]:9464", "::1", 9464),
        (" 9464 ", "127.0.0.1", 9464),
    ],
)
def test_a_listen_address_is_parsed(text: str, host: str, port: int) -> None:
    assert parse_listen_address(text, "metrics.listen") == ListenAddress(host, port)


@pytest.mark.parametrize(
    "text", ["", ":9464", "host:", "host:99999", "a b:1", "::1:9464", "http://x:1", "-1"]
)
def test_an_invalid_listen_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="use HOST:PORT, such as "):
        parse_listen_address(text, "metrics.listen")


async def test_without_a_server_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_settings(flags={"metrics": {"listen": "127.0.0.1:0"}})
    counted = compose.build_metrics(settings)
    monkeypatch.setitem(sys.modules, "httptools", None)
    async with Homing("memory:") as homing:
        with pytest.raises(ConfigError, match=r"metrics\.listen: needs httptools, .*'homing\[metrics\]'"):
            compose.build_endpoint(settings, counted, homing)


def test_the_server_is_not_imported_unless_it_is_used() -> None:
    code = "import sys, homing.compose, homing.library; print({'uvicorn', 'starlette'} & set(sys.modules))"
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert told == "set()\n"
