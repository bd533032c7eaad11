"""SNS over a real socket: expired credentials are read once more, and a check costs nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

from homing.core.model import OutcomeKind
from homing.providers.sns import SnsProvider
from homing.providers.transport import CurlTransport
from homing.testing.faults import Act, FaultServer, Received, answer

from .texting import a_delivery, an_sns, vectors

WIRE = vectors("sns_wire")
TAKEN = answer(200, WIRE["success"]["body"].encode())
(EXPIRED,) = (
    answer(row["status"], row["body"].encode()) for row in WIRE["errors"] if row["code"] == "ExpiredToken"
)


def only(token: str) -> FaultServer:
    """A server that takes one session token."""

    def script(received: Received) -> Act:
        return TAKEN if received.headers["x-amz-security-token"] == token else EXPIRED

    return FaultServer(script)


def with_file(transport: CurlTransport, url: str, file: Path) -> SnsProvider:
    return an_sns(transport, base_url=url, session_token=f"file:{file}")


async def test_a_token_that_was_replaced_is_read_again_and_used(tmp_path: Path) -> None:
    file, transport = tmp_path / "token", CurlTransport()
    file.write_text("old\n")
    async with only("new") as server:
        provider = with_file(transport, server.url, file)
        file.write_text("new\n")
        # Two at once: the second finds that the first has read it already.
        outcomes = await asyncio.gather(*(provider.send(a_delivery()) for _ in range(2)))
        assert [outcome.kind for outcome in outcomes] == [OutcomeKind.ACCEPTED] * 2
        assert [one.headers["x-amz-security-token"] for one in server.received] == ["old"] * 2 + ["new"] * 2
        await transport.close()


async def test_a_token_without_a_newer_one_is_the_providers_fault(tmp_path: Path) -> None:
    file, transport = tmp_path / "token", CurlTransport()
    file.write_text("old")
    async with only("new") as server:
        provider = with_file(transport, server.url, file)
        for _ in range(2):
            outcome = await provider.send(a_delivery())
            assert (outcome.kind, outcome.error_code) == (OutcomeKind.PROVIDER_FAULT, "ExpiredToken")
            file.unlink(missing_ok=True)  # the second time there is nothing to read at all
        assert len(server.received) == 2
        await transport.close()


async def test_a_check_publishes_nothing() -> None:
    transport = CurlTransport()
    async with FaultServer() as server:
        server.play(answer(403), answer(503))
        provider = an_sns(transport, base_url=server.url)
        assert await provider.check()
        assert not await provider.check()
        assert all(b"Action=GetSMSAttributes" in one.body for one in server.received)
        await transport.close()
