"""Rejections that concern one address, and services of recipients that fail: the provider stays in use."""

from __future__ import annotations

import json

import pytest

from homing import Homing, Reason, Recipient, Status
from homing.core.routing.breaker import Phase
from homing.net.http_client import CurlTransport
from homing.providers.apprise.provider import AppriseProvider
from homing.providers.smtp.provider import SmtpProvider
from homing.providers.twilio.provider import TwilioProvider
from homing.providers.webpush.provider import WebPushProvider
from homing.testing.fault_server import FaultServer, ReceivedRequest, ServerAction, answer
from support.smtp_servers import ScriptedSmtpServer
from support.web_push_browser import Browser

VAPID_KEY = "c3dvcmRmaXNoLTAwMTAtc3dvcmRmaXNoLTAwMTAtc3c"

SUPPRESSING = ["550 5.1.1", "550 5.1.2", "553 5.1.3", "551 5.1.6", "556 5.1.10", "550 5.2.1"]


def subscription(path: str) -> str:
    return Browser().subscription(endpoint=f"https://push.example/{path}")


async def ended(engine: Homing, recipient: Recipient, channel: str) -> tuple[Status, Reason | None]:
    """Sends one message and returns how it ended."""
    sent = await engine.send(recipient, channel=channel, title="Hello", body="Hello")
    await engine.process()
    found = await engine.get(sent.id)
    return found.status, found.reason


@pytest.mark.parametrize("reply", SUPPRESSING)
async def test_a_mailbox_that_does_not_exist_is_suppressed(reply: str) -> None:
    async with ScriptedSmtpServer(
        lambda number, step: f"{reply} no\r\n".encode() if step == "RCPT" else None
    ) as server:
        provider = SmtpProvider(
            host="127.0.0.1", port=server.port, tls="none", from_email="orders@example.com"
        )
        async with Homing("memory:", providers={"smtp": provider}) as engine:
            ada = Recipient(email="ada@example.org")
            assert await ended(engine, ada, "email") == (Status.FAILED, Reason.DEAD_ADDRESS)
            assert await ended(engine, ada, "email") == (Status.SKIPPED, Reason.SUPPRESSED)


@pytest.mark.parametrize("code", [21211, 21614])
async def test_a_number_that_is_not_valid_is_suppressed(code: int) -> None:
    refusal = answer(400, json.dumps({"code": code, "message": "no", "status": 400}).encode())
    async with FaultServer(lambda received: refusal) as server:
        transport = CurlTransport()
        provider = TwilioProvider(
            transport, account_sid="AC" + "0" * 32, auth_token="t", sender="+15550000", base_url=server.url
        )
        async with Homing("memory:", providers={"twilio": provider}) as engine:
            ada = Recipient(phone="+15550100")
            assert await ended(engine, ada, "sms") == (Status.FAILED, Reason.DEAD_ADDRESS)
            assert await ended(engine, ada, "sms") == (Status.SKIPPED, Reason.SUPPRESSED)
            assert len(server.received) == 1
        await transport.close()


@pytest.mark.parametrize("status", [403, 404, 410])
async def test_old_subscriptions_never_open_the_breaker_of_web_push(status: int) -> None:
    def push_service(received: ReceivedRequest) -> ServerAction:
        return answer(201 if received.path == "/current" else status)

    async with FaultServer(push_service) as server:
        transport = CurlTransport()
        provider = WebPushProvider(
            transport, vapid_private_key=VAPID_KEY, vapid_subject="mailto:us@example.org", base_url=server.url
        )
        async with Homing("memory:", providers={"webpush": provider}) as engine:
            for number in range(12):
                old = Recipient(device_token=subscription(f"old-{number}"))
                assert (await ended(engine, old, "push"))[0] is Status.FAILED
            assert engine.snapshot().breakers["webpush"] is Phase.CLOSED
            current = Recipient(device_token=subscription("current"))
            assert (await ended(engine, current, "push"))[0] is Status.SENT
        await transport.close()


FAILING_MESSAGES = 15
"""More than open a breaker, which are five, and ten for push."""


async def test_a_push_service_that_fails_delays_no_other() -> None:
    def push_services(received: ReceivedRequest) -> ServerAction:
        return answer(503 if received.path == "/broken" else 201)

    async with FaultServer(push_services) as server:
        transport = CurlTransport()
        provider = WebPushProvider(
            transport, vapid_private_key=VAPID_KEY, vapid_subject="mailto:us@example.org", base_url=server.url
        )
        async with Homing("memory:", providers={"webpush": provider}) as engine:
            endpoints = ["https://broken.example/broken"] * FAILING_MESSAGES + ["https://fine.example/fine"]
            for endpoint in endpoints:
                device = Recipient(device_token=Browser().subscription(endpoint=endpoint))
                last = await ended(engine, device, "push")
            assert last == (Status.SENT, None)
            assert engine.snapshot().breakers["webpush"] is Phase.CLOSED
            tried = [received.path for received in server.received]
            assert tried.count("/broken") < FAILING_MESSAGES, "the breaker of that service has opened"
        await transport.close()


# Apprise loads all its plugins, and some of them load old libraries.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_a_chat_service_that_fails_delays_no_other() -> None:
    async with FaultServer(lambda received: answer(503)) as broken, FaultServer() as fine:
        provider = AppriseProvider(url_from_recipient=True, schemes=["json"], recipient_hosts=["127.0.0.1"])
        async with Homing("memory:", providers={"apprise": provider}) as engine:
            for server in [broken] * FAILING_MESSAGES + [fine]:
                service = Recipient(url=server.url.replace("http", "json", 1))
                last = await ended(engine, service, "chat")
            assert last == (Status.SENT, None)
            assert engine.snapshot().breakers["apprise"] is Phase.CLOSED
            assert len(broken.received) < FAILING_MESSAGES, "the breaker of that service has opened"
