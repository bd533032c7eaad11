"""Synchronous sends whose caller is gone, over real HTTP."""

from __future__ import annotations

import asyncio
import http.client
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from homing import Listed
from homing.api.settings import ServiceSettings
from homing.core.lifecycle.outcomes import Outcome
from homing.core.notifications import Channel
from homing.core.ports.providers import Delivery
from homing.providers.local.scripted import ScriptedProvider
from support.running_service import RunningService

Serve = Callable[..., RunningService]
SEND = "/api/v1/notifications/send"
MAIL = {"recipient": {"email": "ada@example.org"}, "channel": "email", "content": {"body": "hello"}}


class SlowProvider(ScriptedProvider):
    """Records its delivery, and answers when the test allows it."""

    def __init__(self) -> None:
        super().__init__("pigeon")
        self.asked, self.may_answer = threading.Event(), threading.Event()

    async def send(self, delivery: Delivery) -> Outcome:
        self.asked.set()
        await asyncio.to_thread(self.may_answer.wait, 60)
        return await super().send(delivery)


def slow(serve: Serve, settings: ServiceSettings | None = None) -> tuple[RunningService, SlowProvider]:
    provider = SlowProvider()
    listed = Listed(id="pigeon", provider=provider, channels=(Channel.EMAIL,))
    service = serve(settings, store="memory:", providers={"pigeon": listed})
    return service, provider


def only_one(service: RunningService, status: str) -> Any:
    """Waits until the only notification has this status, and returns it."""
    until = time.monotonic() + 60
    while True:
        (found,) = service.call("GET", "/api/v1/notifications").json["items"]
        if found["status"] == status:
            return service.call("GET", f"/api/v1/notifications/{found['id']}").json
        assert time.monotonic() < until, found
        time.sleep(0.01)


def test_a_client_that_disconnects_does_not_lose_the_record_of_a_synchronous_send(serve: Serve) -> None:
    service, provider = slow(serve)
    body = msgspec.json.encode({**MAIL, "synchronous": True})
    client = http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)
    client.request(
        "POST", SEND, body, {"Authorization": "Bearer default", "Content-Type": "application/json"}
    )
    assert provider.asked.wait(60)
    client.close()
    provider.may_answer.set()
    found = only_one(service, "sent")
    assert (found["attemptCount"], found["providerMessageIds"]) == (1, ["pigeon-1"])
    service.on_loop(lambda engine: engine.process())
    assert len(provider.sent) == 1


def test_a_synchronous_send_that_the_service_abandons_is_recorded_and_never_sent_later(serve: Serve) -> None:
    service, provider = slow(serve, ServiceSettings(read_ms=1, answer_ms=1))
    sent = service.call("POST", SEND, {**MAIL, "synchronous": True}, headers={"Idempotency-Key": "otp-1"})
    assert (sent.status, sent.json["error"]["code"]) == (503, "TIMEOUT")
    provider.may_answer.set()
    found = only_one(service, "failed")
    service.on_loop(lambda engine: engine.process())
    again = service.call("POST", SEND, {**MAIL, "synchronous": True}, headers={"Idempotency-Key": "otp-1"})
    assert again.status in (502, 503, 504)
    assert only_one(service, "failed")["id"] == found["id"]
    assert len(provider.sent) <= 1
