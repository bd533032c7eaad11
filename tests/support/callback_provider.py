"""A provider with callbacks, for tests: each callback is a list of events, signed with a shared secret."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Sequence
from typing import Any

import msgspec

from homing.core.errors import CallbackRefused
from homing.core.lifecycle.outcomes import Outcome
from homing.core.lifecycle.receipts import Callback, ParsedCallback, Receipt, ReceiptEvent
from homing.core.notifications import OutcomeKind
from homing.core.ports.providers import Delivery
from homing.providers.local.scripted import ScriptedProvider

SECRET = b"whsec"
LOST_ANSWER = Outcome(OutcomeKind.AMBIGUOUS, error_code="reset", error="the connection was lost")


class CallbackProvider(ScriptedProvider):
    """Follows its script. Tests can make it report on any delivery."""

    def handle_callback(self, callback: Callback, now_ms: int) -> ParsedCallback:
        signature = hmac.new(SECRET, callback.body, "sha256").hexdigest()
        if not hmac.compare_digest(callback.headers.get("signature", ""), signature):
            raise CallbackRefused
        receipts, ignored, unreadable = [], 0, 0
        for event in msgspec.json.decode(callback.body):
            if not isinstance(event, dict):
                unreadable += 1
            elif event.get("event") == "ping":
                ignored += 1
            else:
                receipts.append(msgspec.convert({"provider": "whoever", "at": now_ms, **event}, Receipt))
        return ParsedCallback(receipts=tuple(receipts), ignored=ignored, unreadable=unreadable)


def event_about(delivery: Delivery, event: ReceiptEvent, *, number: int = 0, **fields: Any) -> dict[str, Any]:
    """Returns one event about one attempt in the provider's format."""
    message = f"m-{delivery.notification_id}-{delivery.attempt}"
    return {
        "provider_message_id": message,
        "event": event.value,
        "event_id": f"{message}-{event.value}-{number}",
        "notification_id": delivery.notification_id,
        "attempt": delivery.attempt,
        **fields,
    }


def signed_callback(events: Sequence[Any], secret: bytes = SECRET) -> Callback:
    """Returns the signed callback with these events."""
    body = msgspec.json.encode(list(events))
    signature = hmac.new(secret, body, "sha256").hexdigest()
    return Callback(url="https://us.example/cb", headers={"signature": signature}, body=body)


class LookupProvider(CallbackProvider):
    """Also supports look-ups. `answers` has the answer for each notification."""

    def __init__(self, name: str, script: Sequence[Any] = ()) -> None:
        super().__init__(name, script)
        self.answers: dict[str, Any] = {}
        self.asked: list[tuple[float, Delivery, str | None]] = []

    async def look_up(self, delivery: Delivery, provider_message_id: str | None) -> Receipt | None:
        self.asked.append((asyncio.get_running_loop().time(), delivery, provider_message_id))
        answer = self.answers.get(delivery.notification_id)
        if isinstance(answer, Exception):
            raise answer
        if not isinstance(answer, ReceiptEvent):
            return answer
        event = event_about(delivery, answer)
        return msgspec.convert({"provider": "whoever", "at": 0, **event}, Receipt)
