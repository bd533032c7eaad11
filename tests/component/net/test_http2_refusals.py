"""HTTP/2 streams that a server refuses: it did not process the request, so the request may be repeated."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from homing.net.http_client import CurlTransport
from homing.net.http_messages import HttpRequest, HttpResponse, TransportFailure
from support.http2_server import Http2Server, http2_server


class Exchange:
    """A server and a client of it."""

    def __init__(self, server: Http2Server, transport: CurlTransport) -> None:
        self.server = server
        self._transport = transport

    async def post(self) -> HttpResponse | TransportFailure:
        return await self._transport.send(HttpRequest(url=self.server.url, body=b"{}"), timeout_ms=10_000)


@pytest.fixture
async def exchange(tmp_path: Path) -> AsyncIterator[Exchange]:
    async with http2_server(tmp_path) as (server, authority):
        transport = CurlTransport(ca_file=authority, resolve={"localhost:" + server.url[18:-1]: "127.0.0.1"})
        yield Exchange(server, transport)
        await transport.close()


@pytest.mark.parametrize("refusal", ["refuse", "goaway"])
async def test_a_refused_stream_of_a_new_connection_is_repeated_once(
    exchange: Exchange, refusal: str
) -> None:
    exchange.server.play([refusal])
    answer = await exchange.post()
    assert isinstance(answer, HttpResponse)
    assert (answer.status, exchange.server.requests) == (200, 2)


@pytest.mark.parametrize("refusal", ["refuse", "goaway"])
async def test_a_stream_that_is_refused_again_was_not_sent(exchange: Exchange, refusal: str) -> None:
    exchange.server.play([refusal, refusal])
    missed = await exchange.post()
    assert isinstance(missed, TransportFailure)
    assert (missed.written, exchange.server.requests) == (False, 2)


async def test_a_stream_that_the_server_cancelled_may_have_been_processed(exchange: Exchange) -> None:
    exchange.server.play(["cancel"])
    missed = await exchange.post()
    assert isinstance(missed, TransportFailure)
    assert (missed.written, exchange.server.requests) == (True, 1)


async def test_a_refused_stream_of_a_pooled_connection_stays_ambiguous(exchange: Exchange) -> None:
    """libcurl reports it like a connection that broke after the request was written."""
    exchange.server.play(["ok", "refuse"])
    assert isinstance(await exchange.post(), HttpResponse)
    missed = await exchange.post()
    assert isinstance(missed, TransportFailure)
    assert (missed.written, exchange.server.requests) == (True, 2)
