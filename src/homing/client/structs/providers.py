"""What the service takes and answers with: providers.

Written by tools/make_client.py.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from msgspec import Struct, field

from homing.core.breaker import Phase
from homing.core.model import Channel, OutcomeKind, Recipient


class BreakerView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A provider's breaker, as people read it."""

    phase: Phase
    """What holds: the operator's choice where there is one."""
    forced: bool = False
    by: str = ""
    """With `forced`: who chose it."""
    why: str = ""
    since: datetime | None = None
    until: datetime | None = None
    """While it is open or half open by itself: when it next lets a trial through."""


class ProviderView(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One provider with its settings and its breaker."""

    id: str
    kind: str
    channels: tuple[Channel, ...]
    routes: dict[Channel, int] = field(default_factory=dict)
    """Channel → its place on that route; 1 is tried first. A channel may have a route without it."""
    weight: int | None = None
    breaker: BreakerView
    max_in_flight: int
    host_slots: int | None = None
    rate_per_second: float | None = None
    rate_burst: int | None = None


class Health(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a provider's health check said."""

    provider: str
    usable: bool
    problem: str = ""


class TestMessage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a test message goes."""

    address: str
    channel: Channel | None = None
    """Needed where the provider serves several."""


class Tried(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A test message: where it went and what became of it."""

    provider: str
    channel: Channel
    recipient: Recipient
    outcome: OutcomeKind
    latency_ms: int
    provider_message_id: str | None = None
    error_code: str | None = None
    error: str | None = None


class BreakerPhase(StrEnum):
    """What a breaker is to do: an operator's choice, or its own."""

    OPEN = "open"
    CLOSED = "closed"
    AUTO = "auto"


class BreakerOrder(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An operator's word on a breaker. It wins until it is taken back with `auto`."""

    phase: BreakerPhase
    why: str = ""
