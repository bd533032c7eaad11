"""The views of providers: their state, health checks and test messages."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from msgspec import Struct, field

from homing.core.notifications import Channel, OutcomeKind, Recipient
from homing.core.routing.breaker import Phase
from homing.core.routing.splits import SplitOverrideView


class BreakerView(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """State of a provider's circuit breaker."""

    phase: Phase
    """Phase in effect, which is the forced phase if an operator forced one. A breaker whose pause is over is
    `half_open`, even if no notification has come since to try the provider."""
    forced: bool = False
    by: str = ""
    """Operator who forced the phase. Empty unless `forced`."""
    why: str = ""
    since: datetime | None = None
    """When the phase began. If failures opened the breaker, when it opened, however many trials have failed
    since then."""
    until: datetime | None = None
    """When the breaker next allows a trial. Set while the breaker allows no attempt: while it is open, and
    while a trial is in flight. If the phase is forced for a time, when it returns to automatic control."""


class BreakerPolicyView(Struct, frozen=True, kw_only=True, rename="camel"):
    """When a provider's breaker opens and how it recovers. Durations are in milliseconds."""

    failures: int
    """Number of consecutive failures that open the breaker. 0 if the breaker is off."""
    open_ms: int
    """How long the breaker stays open before it allows a trial."""
    health_every_ms: int
    """Time between health checks while the breaker is open."""
    ramp_ms: int
    """Length of the ramp-up after a recovery."""
    ramp_per_second: float
    """Attempts per second at the start of the ramp-up."""


class ProviderView(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A configured provider with its settings and its breaker."""

    id: str
    kind: str
    channels: tuple[Channel, ...]
    routes: Mapping[Channel, int] = field(default_factory=dict)
    """Channel → position of the provider on the channel's route; 1 is tried first.

    A channel whose route does not contain the provider is missing here.
    """
    weight: int | None = None
    """Share of first attempts in the settings. Omitted if they are not split by weight."""
    splits: Mapping[Channel, SplitOverrideView] = field(default_factory=dict)
    """Channel → override of its split that is in force, in place of the weights. Omitted if there is none."""
    breaker: BreakerView
    breaker_policy: BreakerPolicyView
    """When the breaker opens. For a provider with slots per host, it applies to the breaker of each host."""
    max_in_flight: int
    host_slots: int | None = None
    rate_per_second: float | None = None
    rate_burst: int | None = None


class Health(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Result of a provider's health check."""

    provider: str
    usable: bool
    problem: str = ""


class Tried(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Result of sending a test message through a provider."""

    provider: str
    channel: Channel
    recipient: Recipient
    outcome: OutcomeKind
    latency_ms: int
    provider_message_id: str | None = None
    error_code: str | None = None
    error: str | None = None
