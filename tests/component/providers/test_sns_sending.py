"""SNS over a real socket: expired credentials are read again, and a health check publishes nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from homing.core.notifications import OutcomeKind
from homing.net.http_client import CurlTransport
from homing.providers.sns.provider import SnsProvider
from homing.testing.fault_server import FaultServer, ReceivedRequest, ServerAction, answer, html_page
from support.sms_deliveries import a_delivery, a_push, an_sns
from support.vector_files import vectors

WIRE = vectors("sns_wire")
TAKEN = answer(200, WIRE["success"]["body"].encode())
(EXPIRED,) = (
    answer(row["status"], row["body"].encode()) for row in WIRE["errors"] if row["code"] == "ExpiredToken"
)


def only(token: str) -> FaultServer:
    """A server that accepts one session token."""

    def script(received: ReceivedRequest) -> ServerAction:
        return TAKEN if received.headers["x-amz-security-token"] == token else EXPIRED

    return FaultServer(script)


def with_file(transport: CurlTransport, url: str, file: Path) -> SnsProvider:
    return an_sns(transport, base_url=url, session_token=f"file:{file}")


async def test_a_replaced_token_is_read_again_and_used(tmp_path: Path) -> None:
    file, transport = tmp_path / "token", CurlTransport()
    file.write_text("old\n")
    async with only("new") as server:
        provider = with_file(transport, server.url, file)
        file.write_text("new\n")
        # Two at once: the second finds that the first has already read it.
        outcomes = await asyncio.gather(*(provider.send(a_delivery()) for _ in range(2)))
        assert [outcome.kind for outcome in outcomes] == [OutcomeKind.ACCEPTED] * 2
        assert [one.headers["x-amz-security-token"] for one in server.received] == ["old"] * 2 + ["new"] * 2
        await transport.close()


async def test_without_a_newer_token_it_is_a_provider_fault(tmp_path: Path) -> None:
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


async def test_a_health_check_publishes_nothing() -> None:
    transport = CurlTransport()
    async with FaultServer() as server:
        server.play(answer(403), answer(503))
        provider = an_sns(transport, base_url=server.url)
        assert await provider.check()
        assert not await provider.check()
        assert all(b"Action=GetSMSAttributes" in one.body for one in server.received)
        await transport.close()


# Opted-out recipients -----------------------------------------------------------------------------------


def opted_out(answer_: str) -> ServerAction:
    body = (
        '<CheckIfPhoneNumberIsOptedOutResponse xmlns="http://sns.amazonaws.com/doc/2010-03-31/">'
        f"<CheckIfPhoneNumberIsOptedOutResult><isOptedOut>{answer_}</isOptedOut>"
        "</CheckIfPhoneNumberIsOptedOutResult></CheckIfPhoneNumberIsOptedOutResponse>"
    )
    return answer(200, body.encode())


@pytest.mark.parametrize(
    "asked", [opted_out("false"), opted_out("perhaps"), answer(403), answer(500), html_page(200)]
)
async def test_a_recipient_that_has_not_clearly_opted_out_gets_the_sms(asked: ServerAction) -> None:
    transport = CurlTransport()
    async with FaultServer() as server:
        server.play(asked, TAKEN)
        provider = an_sns(transport, base_url=server.url, check_opt_out=True)
        assert (await provider.send(a_delivery())).kind is OutcomeKind.ACCEPTED
        question, publish = (one.body for one in server.received)
        number = b"phoneNumber=%2B15558675310"
        assert question == b"Action=CheckIfPhoneNumberIsOptedOut&Version=2010-03-31&" + number
        assert publish.startswith(b"Action=Publish&")
        await transport.close()


async def test_a_recipient_that_has_opted_out_gets_no_sms() -> None:
    transport = CurlTransport()
    async with FaultServer() as server:
        server.play(opted_out("true"), TAKEN)
        provider = an_sns(transport, base_url=server.url, check_opt_out=True)
        outcome = await provider.send(a_delivery())
        assert (outcome.kind, outcome.error_code) == (OutcomeKind.OPTED_OUT, "OptedOut")
        assert len(server.received) == 1
        await transport.close()


async def test_a_push_and_an_sms_without_the_setting_are_sent_without_a_lookup() -> None:
    transport = CurlTransport()
    async with FaultServer() as server:
        server.play(TAKEN, TAKEN)
        assert (await an_sns(transport, base_url=server.url).send(a_delivery())).kind is OutcomeKind.ACCEPTED
        asking = an_sns(transport, base_url=server.url, check_opt_out=True)
        assert (await asking.send(a_push())).kind is OutcomeKind.ACCEPTED
        assert all(one.body.startswith(b"Action=Publish&") for one in server.received)
        await transport.close()
