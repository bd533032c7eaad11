"""HTTP/2 over TLS with Node's server: one connection for many requests, and whether they were written."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme

from homing.net.http_client import CurlTransport
from homing.net.http_messages import HttpRequest, HttpResponse, TransportFailure
from support.postgres_servers import skip_or_fail

NODE = shutil.which("node")


class Peer(NamedTuple):
    """A running server, and the transport that trusts it."""

    url: str
    transport: CurlTransport
    process: asyncio.subprocess.Process

    async def ask(
        self, path: str, body: bytes = b"hello", timeout_ms: int = 60_000
    ) -> HttpResponse | TransportFailure:
        return await self.transport.send(HttpRequest(url=self.url + path, body=body), timeout_ms=timeout_ms)

    async def heard(self, count: int) -> list[str]:
        """Returns what the server has read completely: path and size of the body."""
        assert self.process.stdout is not None
        return [(await self.process.stdout.readline()).decode().strip() for _ in range(count)]


@pytest.fixture
async def peer(tmp_path: Path) -> AsyncIterator[Peer]:
    if NODE is None:
        skip_or_fail("Node.js for an HTTP/2 server")
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    certificate.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server.pem"))
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    script = Path(__file__).parents[1] / "support" / "http2_server.js"
    process = await asyncio.create_subprocess_exec(
        str(NODE), str(script), str(tmp_path / "server.pem"), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    port = int(await process.stdout.readline())
    transport = CurlTransport(ca_file=str(tmp_path / "ca.pem"))
    yield Peer(f"https://localhost:{port}", transport, process)
    await transport.close()
    process.terminate()
    await process.wait()


async def test_many_requests_share_one_connection(peer: Peer) -> None:
    answers = await asyncio.gather(*(peer.ask("/ok", b"x" * n) for n in range(60)))
    assert {answer.body for answer in answers if isinstance(answer, HttpResponse)} == {b"1"}
    assert len(answers) == 60
    assert sorted(await peer.heard(60)) == sorted(f"/ok {n}" for n in range(60))


async def test_a_stream_reset_after_reading_is_ambiguous(peer: Peer) -> None:
    await peer.ask("/ok")
    missed = await peer.ask("/reset")
    assert isinstance(missed, TransportFailure)
    assert missed.written
    assert await peer.heard(2) == ["/ok 5", "/reset 5"]


async def test_a_connection_that_breaks_after_reading_is_ambiguous_and_nothing_is_sent_twice(
    peer: Peer,
) -> None:
    await peer.ask("/ok")
    missed = await peer.ask("/drop")
    assert isinstance(missed, TransportFailure)
    assert missed.written
    assert isinstance(await peer.ask("/ok"), HttpResponse)
    assert await peer.heard(3) == ["/ok 5", "/drop 5", "/ok 5"]


async def test_a_timeout_after_writing_is_ambiguous(peer: Peer) -> None:
    await peer.ask("/ok")
    missed = await peer.ask("/hang", timeout_ms=3_000)
    assert isinstance(missed, TransportFailure)
    assert (missed.code, missed.written) == ("timeout", True)


async def test_a_request_that_is_stuck_halfway_was_not_written(peer: Peer) -> None:
    await peer.ask("/ok")
    missed = await peer.ask("/unread", b"x" * 20_000_000, timeout_ms=500)
    assert isinstance(missed, TransportFailure)
    assert (missed.code, missed.written) == ("timeout", False)


async def test_a_refused_stream_is_never_taken_for_a_response(peer: Peer) -> None:
    await peer.ask("/ok")
    missed = await peer.ask("/refuse")
    assert isinstance(missed, TransportFailure)
    assert await peer.heard(1) == ["/ok 5"]
