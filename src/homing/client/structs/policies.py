"""What the service takes and answers with: policies.

Written by tools/make_client.py.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from msgspec import UNSET, Struct, UnsetType

from homing.client.structs.notifications import PolicyView
from homing.core.model import Channel, Mode, Priority
from homing.core.policy import Backoff, BounceFailover, Jitter, OnTimeout
from homing.core.rehearsal import Outage, Traffic


class PolicyFields(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What a rule says of a policy; what it leaves out comes from the preset. Durations in milliseconds."""

    max_attempts: int | UnsetType = UNSET
    """All attempts at all providers, the first included."""
    backoff: Backoff | UnsetType = UNSET
    base_ms: int | UnsetType = UNSET
    factor: float | UnsetType = UNSET
    steps_ms: tuple[int, ...] | UnsetType = UNSET
    """For `fixed`: the delay after each attempt; the last one repeats."""
    cap_ms: int | UnsetType = UNSET
    """0: none."""
    jitter: Jitter | UnsetType = UNSET
    jitter_ratio: float | UnsetType = UNSET
    jitter_ms: int | UnsetType = UNSET
    failover_after: int | UnsetType = UNSET
    timeout_ms: int | UnsetType = UNSET
    on_timeout: OnTimeout | UnsetType = UNSET
    max_age_ms: int | UnsetType = UNSET
    bounce_failover: BounceFailover | UnsetType = UNSET
    call: str | UnsetType = UNSET
    """For `callable`: the name of the function. It comes from the configuration and is only shown here."""


class RuleSource(StrEnum):
    """Where a rule in force comes from."""

    PRESET = "preset"
    CONFIGURED = "configured"
    CHANGED = "changed"


class RuleView(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One rule: what it matches, what it says, and where it comes from."""

    tenant: str = "*"
    type: str = "*"
    origin: str = "*"
    channel: str = "*"
    priority: str = "*"
    name: str
    policy: PolicyFields
    source: RuleSource | UnsetType = UNSET
    changed_by: str | UnsetType = UNSET
    changed_at: datetime | UnsetType = UNSET


class PolicyList(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The preset and the rules over it."""

    preset: str
    fallback: str
    """The preset's rule for what none of its rules matches."""
    rules: tuple[RuleView, ...]
    """One's own; the most specific that matches wins."""
    preset_rules: tuple[RuleView, ...]
    """What a rule leaves out comes from the best of these."""


class HistoryQuery(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far back."""

    limit: int = 50


class PolicyChangeView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One change of a rule at runtime."""

    rule: str
    who: str
    at: datetime
    why: str
    before: RuleView | None
    """None: there was none of that name."""
    after: RuleView | None
    """None: it was taken out."""


class KeysQuery(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a notification would be matched by; the tenant is the caller's."""

    type: str = "message"
    origin: str = ""
    channel: Channel = Channel.EMAIL
    priority: str = "medium"
    mode: Mode | None = None
    """None: as the type and the priority say."""


class KeysView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a notification is matched by."""

    tenant: str
    type: str
    origin: str
    channel: Channel
    priority: Priority


class Delay(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The wait after one attempt."""

    attempt: int
    min_ms: int
    max_ms: int
    """With all of its jitter."""
    cumulative_min_ms: int
    """The shortest way so far."""


class PolicyExplanation(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Which policy applies to such a notification, and where each of its fields comes from."""

    keys: KeysView
    mode: Mode
    policy: PolicyView
    rule: str | None
    preset_rule: str
    sources: dict[str, str]
    passed_over: tuple[str, ...]
    rules: tuple[str, ...]
    """All rules of one's own that are in force."""
    delays: tuple[Delay, ...]
    """All waits on the way to the dead letter."""


class DelayTable(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Every wait on the way to the dead letter, exactly."""

    rule: str | None
    preset_rule: str
    max_attempts: int
    delays: tuple[Delay, ...]


class Simulation(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A policy, an outage and traffic. What is left out is as in force, or as the default says."""

    preset: str | None = None
    """None: the preset and the rules in force."""
    policy: PolicyFields | None = None
    """These fields hold for everything, over the preset; the rules in force are left out then."""
    traffic: Traffic = Traffic(per_second=1.0)
    outages: tuple[Outage, ...] = (Outage(),)
    providers: int = 1
    """1: `primary` alone; 2: `primary` and, after it, `secondary`."""
    latency_ms: int = 200
    rate_per_second: float | None = None
    """The rate limit of each provider, if it has one."""
    max_in_flight: int = 128
    notifications: int = 1000
    """No more than this many are sent, whatever the traffic says."""
    seed: int = 1


class RuleWritten(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rule whole: what it leaves out comes from the preset."""

    tenant: str = "*"
    type: str = "*"
    origin: str = "*"
    channel: str = "*"
    priority: str = "*"
    policy: PolicyFields = PolicyFields()
    why: str = ""


class WhyQuery(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why it is done."""

    why: str = ""
