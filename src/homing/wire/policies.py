"""Requests and answers about retry policies and their simulation."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from homing.core.notifications import Channel, Mode, Priority
from homing.core.rehearsal import Outage, Traffic
from homing.core.retry.policy_views import Delay, PolicyFields, RuleKeys, RuleView
from homing.wire.common import Limit, Why

Name = Annotated[str, Meta(min_length=1, max_length=100, pattern="^[^\\x00-\\x1f\\x7f]+$")]


class PolicyList(Struct, frozen=True, kw_only=True, rename="camel"):
    """The active preset and rules."""

    preset: str
    """Name of the preset."""
    fallback: str
    """Name of the preset's rule for notifications that match none of its other rules."""
    rules: tuple[RuleView, ...]
    """Custom rules. The most specific rule that matches a notification applies."""
    preset_rules: tuple[RuleView, ...]
    """Rules of the preset. Fields that a custom rule omits come from the best match among these."""


class RuleBody(
    RuleKeys, frozen=True, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True
):
    """A custom rule. Policy fields that are omitted come from the preset."""

    policy: PolicyFields = PolicyFields()
    """Policy fields that the rule sets."""
    why: Why = ""
    """Reason for the change, for the history."""


class WhyQuery(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Optional reason for a change."""

    why: Why = ""
    """Reason for the change, for the history."""


class HistoryQuery(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Limits the number of changes that are returned."""

    limit: Limit = 50


class PolicyQuery(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Properties by which rules match a notification. The tenant is the caller's."""

    type: Annotated[Name, Meta(examples=["order_confirmed"])] = "message"
    """Type of the notification."""
    origin: Annotated[str, Meta(max_length=100)] = ""
    """Origin of the notification."""
    channel: Channel = Channel.EMAIL
    """Channel of the notification."""
    priority: Annotated[str, Meta(pattern=f"^({'|'.join(Priority)}|normal)$")] = "medium"
    """Priority of the notification. `normal` is another name for `medium`."""
    mode: Mode | None = None
    """Delivery mode. If omitted, it is derived from the type and the priority."""


class DelayTable(Struct, frozen=True, kw_only=True, rename="camel"):
    """The delays between attempts until a notification becomes a dead letter."""

    rule: str | None
    """Name of the custom rule that applies. Null if none matches."""
    preset_rule: str
    """Name of the preset's rule that applies."""
    max_attempts: int
    """Maximum number of attempts."""
    delays: tuple[Delay, ...]
    """Delay after each failed attempt."""


class SimulationBody(
    Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True
):
    """A policy, outages and traffic to simulate."""

    preset: Annotated[str, Meta(pattern="^(priority|simple|channel|fixed|broker)$")] | None = None
    """Preset to simulate. If omitted, the active preset and rules are simulated."""
    policy: PolicyFields | None = None
    """Policy fields that override the preset for every notification. If set, the active rules are ignored."""
    traffic: Traffic = Traffic(per_second=1.0)
    """Notifications that are sent during the simulation."""
    outages: Annotated[tuple[Outage, ...], Meta(max_length=10)] = (Outage(),)
    """Outages of the simulated providers."""
    providers: Annotated[int, Meta(ge=1, le=2)] = 1
    """Number of simulated providers: `primary` alone, or `primary` with `secondary` for failover."""
    latency_ms: Annotated[int, Meta(ge=0, le=60_000)] = 200
    """Time that a provider takes per attempt, in milliseconds."""
    rate_per_second: Annotated[float, Meta(ge=0.1, le=10_000)] | None = None
    """Maximum number of messages per second and provider. If omitted, there is no limit."""
    max_in_flight: Annotated[int, Meta(ge=1, le=1000)] = 128
    """Maximum number of attempts in flight."""
    notifications: Annotated[int, Meta(ge=1, le=2_000)] = 1_000
    """Maximum number of notifications that are sent, regardless of the traffic."""
    seed: Annotated[int, Meta(ge=0, le=2**31)] = 1
    """Seed of the random numbers. The same seed gives the same result."""
