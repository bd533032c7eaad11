"""Synchronous sends over real HTTP: sent before the answer, on record, and never sent later."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from threading import Event
from typing import Any

import msgspec

from homing import Homing, Listed, Outcome, OutcomeKind
from homing.core.model import Channel, Status
from homing.core.ports import Delivery
from homing.providers.scripted import HANG, ScriptedProvider
from service import Serving

Serve = Callable[..., Serving]
SEND = "/api/v1/notifications/send"
NOW = {
    "recipient": {"email": "ada@example.org"},
    "channel": "email",
    "content": {"body": "hello"},
    "synchronous": True,
}


def pigeon(*script: Any) -> dict[str, Any]:
    """One provider for mail that does as it is told."""
    provider = ScriptedProvider("pigeon", script)
    return {"pigeon": Listed(id="pigeon", provider=provider, channels=(Channel.EMAIL,))}


def test_a_synchronous_send_answers_with_what_became_of_it(serve: Serve) -> None:
    arrived = Outcome(OutcomeKind.ACCEPTED, provider_message_id="m-1", delivered=True)
    service = serve(store="memory:", providers=pigeon(arrived))
    sent = service.call("POST", SEND, NOW)
    assert (sent.status, sent.json["status"]) == (200, "delivered")
    assert sent.json["providerMessageId"] == "m-1"
    assert sent.json["deliveredAt"].endswith("Z")
    assert "queueName" not in sent.json


def test_a_synchronous_send_that_fails_is_on_record_and_never_sent_later(serve: Serve) -> None:
    providers = pigeon("transient")
    service = serve(store="memory:", providers=providers)
    failed = service.call("POST", SEND, NOW)
    assert (failed.status, failed.json["error"]["code"]) == (502, "DELIVERY_FAILED")
    assert failed.json["error"]["message"].endswith("Notification NOT queued.")
    id = failed.json["error"]["notificationId"]
    found = service.call("GET", f"/api/v1/notifications/{id}").json
    assert (found["status"], found["reason"], found["attemptCount"]) == ("failed", "DELIVERY_FAILED", 1)
    service.on_loop(lambda engine: engine.process())
    assert len(providers["pigeon"].provider.sent) == 1


def test_a_synchronous_send_that_takes_too_long_is_a_timeout(serve: Serve) -> None:
    service = serve(store="memory:", providers=pigeon(HANG))
    late = service.call("POST", SEND, NOW)
    assert (late.status, late.json["error"]["code"]) == (504, "DELIVERY_TIMEOUT")
    assert late.json["error"]["message"] == (
        "Synchronous delivery timed out after 2s. Notification NOT queued."
    )
    found = service.call("GET", f"/api/v1/notifications/{late.json['error']['notificationId']}")
    assert found.json["status"] == "failed"


def test_idempotency_holds_for_synchronous_sends_too(serve: Serve) -> None:
    providers = pigeon(OutcomeKind.ACCEPTED, "transient")
    service = serve(store="memory:", providers=providers)
    key = {"Idempotency-Key": "otp-1"}
    first = service.call("POST", SEND, NOW, headers=key)
    again = service.call("POST", SEND, NOW, headers=key)
    assert (first.status, again.status) == (200, 200)
    assert again.json == {**first.json, "duplicate": True}
    refused = service.call("POST", SEND, {**NOW, "content": {"body": "other"}}, headers=key)
    assert refused.status == 409
    key = {"Idempotency-Key": "otp-2"}
    failed = service.call("POST", SEND, NOW, headers=key)
    assert failed.status == 502
    assert service.call("POST", SEND, NOW, headers=key).json == failed.json
    assert len(providers["pigeon"].provider.sent) == 2


class Gate:
    """A provider that answers when the test lets it."""

    def __init__(self) -> None:
        self.asked = Event()
        self.answer = asyncio.Event()

    async def send(self, delivery: Delivery) -> Outcome:
        self.asked.set()
        await self.answer.wait()
        return Outcome(OutcomeKind.ACCEPTED, provider_message_id="m-1")


def test_a_client_that_hangs_up_during_a_synchronous_send_loses_no_record(serve: Serve) -> None:
    gate = Gate()
    listed = Listed(id="pigeon", provider=gate, channels=(Channel.EMAIL,))  # type: ignore[arg-type]
    service = serve(store="memory:", providers={"pigeon": listed})
    body = msgspec.json.encode(NOW)
    head = f"POST {SEND} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer default\r\n"
    with socket.create_connection(("127.0.0.1", service.port)) as hasty:
        hasty.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert gate.asked.wait(20)

    async def settled(engine: Homing) -> Status:
        gate.answer.set()
        (found,) = (await engine.list()).items
        return (await engine.wait(found.id, timeout_ms=20_000)).status

    assert service.on_loop(settled) == Status.SENT
    (found,) = service.call("GET", "/api/v1/notifications").json["items"]
    assert service.call("GET", f"/api/v1/notifications/{found['id']}").json["providerMessageIds"] == ["m-1"]
