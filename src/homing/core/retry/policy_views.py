"""The views of policies, rules and explanations: what operators, the API and its client see."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from homing.core.errors import ConfigError
from homing.core.notifications import Attempt, Cause, Channel, Mode, Notification, Priority
from homing.core.retry.policy import Backoff, BounceFailover, FailoverWait, Jitter, OnTimeout, PolicyPatch
from homing.core.routing.splits import SplitOverrideView


class PolicyView(Struct, frozen=True, kw_only=True, rename="camel"):
    """All fields of a retry policy. Durations are in milliseconds."""

    max_attempts: int
    """Maximum number of attempts, including the first. Moves at once to another provider do not count."""
    backoff: Backoff
    base_ms: int
    factor: float
    steps_ms: tuple[int, ...]
    """Delay after each attempt, for the `fixed` backoff. The last one repeats."""
    cap_ms: int
    """Maximum delay before jitter. 0 means no limit other than seven days."""
    jitter: Jitter
    jitter_ratio: float
    jitter_ms: int
    failover_after: int
    """Number of failures at a provider after which the next provider is tried."""
    failover_wait: FailoverWait
    """Whether a move to the next provider waits for the backoff."""
    timeout_ms: int
    on_timeout: OnTimeout
    max_age_ms: int
    bounce_failover: BounceFailover
    call: str | UnsetType = UNSET
    """Name of the delay function, for the `callable` backoff."""


class ExplanationView(Struct, frozen=True, kw_only=True, rename="camel"):
    """What happened to a notification, under which policy, and what happens next."""

    notification: Notification
    attempts: tuple[Attempt, ...]
    causes: tuple[Cause, ...]
    """Changes other than attempts: commands, receipts and pre-send checks."""
    policy: PolicyView
    rule: str | None
    """Name of the configured rule that applies. None if only the preset applies."""
    preset_rule: str
    sources: dict[str, str]
    """Field of the policy → rule or preset that set it."""
    passed_over: tuple[str, ...]
    """Names of rules that also matched but are less specific."""
    verdict: str
    next_step: str
    split: SplitOverrideView | None = None
    """Override of the channel's split under which the notification was accepted. It decides where its route
    starts. None if the settings did."""


_YEAR_MS = 366 * 24 * 3_600_000

_From0 = Annotated[int, Meta(ge=0, le=_YEAR_MS)]

_From1 = Annotated[int, Meta(ge=1, le=_YEAR_MS)]

_ANY_OR = "^({}|\\*)$"

_Name = Annotated[str, Meta(min_length=1, max_length=100, pattern="^[^\\x00-\\x1f\\x7f]+$")]


class PolicyFields(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Policy fields that a rule sets. Missing fields come from the preset. Durations are in milliseconds."""

    max_attempts: Annotated[int, Meta(ge=1, le=1000)] | UnsetType = UNSET
    """Maximum number of attempts, including the first. Moves at once to another provider do not count."""
    backoff: Backoff | UnsetType = UNSET
    base_ms: _From0 | UnsetType = UNSET
    factor: Annotated[float, Meta(ge=1, le=100)] | UnsetType = UNSET
    steps_ms: Annotated[tuple[_From0, ...], Meta(max_length=1000)] | UnsetType = UNSET
    """Delay after each attempt, for the `fixed` backoff. The last one repeats."""
    cap_ms: _From0 | UnsetType = UNSET
    """Maximum delay before jitter. 0 means no limit other than seven days."""
    jitter: Jitter | UnsetType = UNSET
    jitter_ratio: Annotated[float, Meta(ge=0, le=1)] | UnsetType = UNSET
    jitter_ms: _From0 | UnsetType = UNSET
    failover_after: Annotated[int, Meta(ge=1, le=1000)] | UnsetType = UNSET
    """Number of failures at a provider after which the next provider is tried."""
    failover_wait: FailoverWait | UnsetType = UNSET
    """Whether a move to the next provider waits for the backoff."""
    timeout_ms: _From1 | UnsetType = UNSET
    on_timeout: OnTimeout | UnsetType = UNSET
    max_age_ms: _From1 | UnsetType = UNSET
    bounce_failover: BounceFailover | UnsetType = UNSET
    call: str | UnsetType = UNSET
    """Name of the delay function, for the `callable` backoff.

    Read-only: a function can be set only in the configuration.
    """

    def patch(self) -> PolicyPatch:
        """Returns the fields as a patch. Raises `ConfigError` if `call` is set."""
        if self.call is not UNSET:
            raise ConfigError("call", "is a function, which can be set only in the configuration")
        return PolicyPatch(**{name: getattr(self, name) for name in self.__struct_fields__})


class RuleSource(StrEnum):
    """Origin of a rule in force."""

    PRESET = "preset"
    CONFIGURED = "configured"
    CHANGED = "changed"
    """The rule was added or replaced at runtime."""


class RuleKeys(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Properties of the notifications that a rule matches. `*` matches any value."""

    tenant: _Name = "*"
    type: _Name = "*"
    origin: _Name = "*"
    channel: Annotated[str, Meta(pattern=_ANY_OR.format("|".join(Channel)))] = "*"
    priority: Annotated[str, Meta(pattern=_ANY_OR.format("|".join((*Priority, "normal"))))] = "*"


class RuleView(RuleKeys, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A rule: what it matches, the policy fields it sets, and its origin."""

    name: str
    policy: PolicyFields
    source: RuleSource | UnsetType = UNSET
    changed_by: str | UnsetType = UNSET
    changed_at: datetime | UnsetType = UNSET


class PolicyChangeView(Struct, frozen=True, kw_only=True, rename="camel"):
    """One change of a rule at runtime."""

    rule: str
    who: str
    at: datetime
    why: str
    before: RuleView | None
    """The rule before the change. None if there was no rule with that name."""
    after: RuleView | None
    """The rule after the change. None if the rule was removed."""


class KeysView(Struct, frozen=True, kw_only=True):
    """Properties of a notification that decide which rules match it."""

    tenant: str
    type: str
    origin: str
    channel: Channel
    priority: Priority


class Delay(Struct, frozen=True, kw_only=True, rename="camel"):
    """Delay after one attempt."""

    attempt: int
    min_ms: int
    max_ms: int
    """Longest possible delay, with the largest jitter."""
    cumulative_min_ms: int
    """Sum of the shortest possible delays up to and including this one."""


class PolicyExplanation(Struct, frozen=True, kw_only=True, rename="camel"):
    """The policy that applies to a kind of notification, and the origin of each of its fields."""

    keys: KeysView
    mode: Mode
    policy: PolicyView
    rule: str | None
    preset_rule: str
    sources: dict[str, str]
    passed_over: tuple[str, ...]
    rules: tuple[str, ...]
    """Names of all rules in force, without those of the preset."""
    delays: tuple[Delay, ...]
    """Delay before each retry, up to the last attempt."""
