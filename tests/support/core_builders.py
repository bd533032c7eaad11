"""Builders of claims, rows, receipts and policies: each test gives only the fields it is about."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from homing.core.lifecycle.claims import Claim, NewNotification, Submission
from homing.core.lifecycle.commands import Command, CommandName
from homing.core.lifecycle.outcomes import Outcome
from homing.core.lifecycle.receipts import Receipt, ReceiptEvent
from homing.core.lifecycle.rows import Change, Row, new_row
from homing.core.notifications import Channel, Content, Message, Mode, OutcomeKind, Priority, Recipient
from homing.core.retry.policy import MatchKeys, RetryPolicy
from homing.core.routing.failover import Route, RouteStep

NOW = 1_737_387_000_000
"""2025-01-20T15:30:00Z, the time in source 002's example."""

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000

ONE: Route = (RouteStep("twilio"),)
TWO: Route = (RouteStep("twilio"), RouteStep("sns"))
THREE: Route = (RouteStep("twilio"), RouteStep("sns"), RouteStep("spare"))

MESSAGE = Message(
    recipient=Recipient(id="user-uuid-789", phone="+15550100"),
    content=Content(text="Your order is confirmed."),
    template_key="order_confirmed",
)

STEADY = RetryPolicy(max_attempts=5, base_ms=10 * SECOND, factor=2.0)
"""10 s, 20 s, 40 s …, without jitter and cap."""


def make_keys(**changes: Any) -> MatchKeys:
    keys = MatchKeys("default", "order_confirmed", "orders", Channel.SMS, Priority.MEDIUM)
    return replace(keys, **changes)


def make_claim(**changes: Any) -> Claim:
    """Returns a claim, made now, for the first attempt of a text message at twilio."""
    claim = Claim(
        id="n-1",
        tenant="acme",
        batch_id="b-1",
        channel=Channel.SMS,
        mode=Mode.STANDARD,
        lane="standard.sms",
        type="order_confirmed",
        category="order_confirmed",
        priority=Priority.MEDIUM,
        origin="orders",
        provider="twilio",
        outlet="twilio",
        pinned=False,
        address="+15550100",
        message=MESSAGE,
        attempt=1,
        token=1,
        created_at=NOW,
        aged_from=NOW,
        due_at=NOW,
        expires_at=None,
        lease_until=NOW + 40 * SECOND,
        started_at=NOW,
        worker="worker-1",
    )
    return replace(claim, **changes)


def make_new(**changes: Any) -> NewNotification:
    new = NewNotification(
        id="n-1",
        channel=Channel.SMS,
        mode=Mode.STANDARD,
        lane="standard.sms",
        type="order_confirmed",
        category="order_confirmed",
        priority=Priority.MEDIUM,
        origin="orders",
        provider="twilio",
        outlet="twilio",
        address="+15550100",
        message=MESSAGE,
        max_age_ms=DAY,
    )
    return replace(new, **changes)


def accept(new: NewNotification, *, lease_to: str | None = None, now: int = NOW) -> Change:
    submission = Submission(
        tenant="acme", batch_id="b-1", notifications=(new,), lease_to=lease_to, lease_ms=12 * SECOND
    )
    return new_row(new, submission, now)


def make_row(**changes: Any) -> Row:
    """Returns a row that waits for its first attempt, with these fields changed."""
    return replace(accept(make_new()).row, **changes)


def make_outcome(kind: OutcomeKind, **changes: Any) -> Outcome:
    return replace(Outcome(kind), **changes)


def make_command(name: CommandName, **changes: Any) -> Command:
    return replace(Command(name=name, who="ada", why="asked for"), **changes)


def make_receipt(event: ReceiptEvent, **changes: Any) -> Receipt:
    receipt = Receipt(
        provider="twilio",
        provider_message_id="SM123",
        event=event,
        event_id=f"SM123:{event.value}",
        at=NOW,
        routes={Channel.SMS: TWO},
    )
    return replace(receipt, **changes)
