"""Rules, their changes and their delays as they go over the wire: the same from REST and from `--json`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from homing.core.backoff import bounds_ms
from homing.core.errors import ConfigError
from homing.core.events import moment
from homing.core.model import Channel, Mode, Priority
from homing.core.policy import (
    Backoff,
    BounceFailover,
    Jitter,
    Keys,
    OnTimeout,
    PolicyBook,
    PolicyPatch,
    RetryPolicy,
    Rule,
)
from homing.core.reading import camel
from homing.engine.explaining import PolicyView, policy_view
from homing.engine.policies import Policies, PolicyChange

_YEAR_MS = 366 * 24 * 3_600_000
_From0 = Annotated[int, Meta(ge=0, le=_YEAR_MS)]
_From1 = Annotated[int, Meta(ge=1, le=_YEAR_MS)]
_ANY_OR = "^({}|\\*)$"
_Name = Annotated[str, Meta(min_length=1, max_length=100, pattern="^[^\\x00-\\x1f\\x7f]+$")]


class PolicyFields(
    Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True
):
    """What a rule says of a policy; what it leaves out comes from the preset. Durations in milliseconds."""

    max_attempts: Annotated[int, Meta(ge=1, le=1000)] | UnsetType = UNSET
    """All attempts at all providers, the first included."""
    backoff: Backoff | UnsetType = UNSET
    base_ms: _From0 | UnsetType = UNSET
    factor: Annotated[float, Meta(ge=1, le=100)] | UnsetType = UNSET
    steps_ms: Annotated[tuple[_From0, ...], Meta(max_length=1000)] | UnsetType = UNSET
    """For `fixed`: the delay after each attempt; the last one repeats."""
    cap_ms: _From0 | UnsetType = UNSET
    """0: none."""
    jitter: Jitter | UnsetType = UNSET
    jitter_ratio: Annotated[float, Meta(ge=0, le=1)] | UnsetType = UNSET
    jitter_ms: _From0 | UnsetType = UNSET
    failover_after: Annotated[int, Meta(ge=1, le=1000)] | UnsetType = UNSET
    timeout_ms: _From1 | UnsetType = UNSET
    on_timeout: OnTimeout | UnsetType = UNSET
    max_age_ms: _From1 | UnsetType = UNSET
    bounce_failover: BounceFailover | UnsetType = UNSET
    call: str | UnsetType = UNSET
    """For `callable`: the name of the function. It comes from the configuration and is only shown here."""

    def patch(self) -> PolicyPatch:
        """As the engine takes it; a function by its name is refused."""
        if self.call is not UNSET:
            raise ConfigError("call", "is a function, which can be set in the configuration only")
        return PolicyPatch(**{name: getattr(self, name) for name in self.__struct_fields__ if name != "call"})


class RuleSource(StrEnum):
    """Where a rule in force comes from."""

    PRESET = "preset"
    CONFIGURED = "configured"
    CHANGED = "changed"
    """Added or replaced while running."""


class RuleKeys(
    Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True
):
    """What a rule matches; `*` is anything."""

    tenant: _Name = "*"
    type: _Name = "*"
    origin: _Name = "*"
    channel: Annotated[str, Meta(pattern=_ANY_OR.format("|".join(Channel)))] = "*"
    priority: Annotated[str, Meta(pattern=_ANY_OR.format("|".join((*Priority, "normal"))))] = "*"


class RuleView(RuleKeys, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One rule: what it matches, what it says, and where it comes from."""

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
    """None: there was none of that name."""
    after: RuleView | None
    """None: it was taken out."""


class KeysView(Struct, frozen=True, kw_only=True):
    """What a notification is matched by."""

    tenant: str
    type: str
    origin: str
    channel: Channel
    priority: Priority


class Delay(Struct, frozen=True, kw_only=True, rename="camel"):
    """The wait after one attempt."""

    attempt: int
    min_ms: int
    max_ms: int
    """With all of its jitter."""
    cumulative_min_ms: int
    """The shortest way so far."""


class PolicyExplanation(Struct, frozen=True, kw_only=True, rename="camel"):
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


def explained_keys(book: PolicyBook, keys: Keys, mode: Mode, rules: tuple[Rule, ...]) -> PolicyExplanation:
    """Which rule wins for these keys, and what follows from it."""
    found = book.resolve(keys, mode)
    return PolicyExplanation(
        keys=KeysView(**{name: getattr(keys, name) for name in keys.__struct_fields__}),
        mode=mode,
        policy=policy_view(found.policy),
        rule=found.rule,
        preset_rule=found.preset_rule,
        sources={camel(name): source for name, source in found.sources.items()},
        passed_over=found.passed_over,
        rules=tuple(rule.name for rule in rules),
        delays=tuple(delays(found.policy)),
    )


def delays(policy: RetryPolicy) -> Iterator[Delay]:
    """One for each retry: the wait after attempt n, its bounds, and the sum of the shortest so far."""
    total = last = 0
    for attempt in range(1, policy.max_attempts):
        low, high = bounds_ms(policy, attempt, last)
        total, last = total + low, high
        yield Delay(attempt=attempt, min_ms=low, max_ms=high, cumulative_min_ms=total)


def rule_view(rule: Rule, policies: Policies | None = None, *, preset: bool = False) -> RuleView:
    """A rule as it is in force; without `policies`, as it was when it was kept."""
    keys = {name: getattr(rule, name) for name in Keys.__struct_fields__}
    fields = {**rule.policy.given()}
    if "call" in fields:
        call = fields["call"]
        fields["call"] = call if isinstance(call, str) else f"{call.__module__}:{call.__qualname__}"
    shown = RuleView(name=rule.name, policy=PolicyFields(**fields), **keys)
    if preset:
        return msgspec.structs.replace(shown, source=RuleSource.PRESET)
    if policies is None:
        return shown
    entry = policies.changed.get(rule.name)
    if entry is None:
        return msgspec.structs.replace(shown, source=RuleSource.CONFIGURED)
    return msgspec.structs.replace(
        shown,
        source=RuleSource.CHANGED,
        changed_by=entry.updated_by,
        changed_at=moment(entry.updated_at),
    )


def change_view(change: PolicyChange) -> PolicyChangeView:
    """A change as it was kept."""
    return PolicyChangeView(
        rule=change.rule,
        who=change.who,
        at=moment(change.at),
        why=change.why,
        before=_kept(change.before),
        after=_kept(change.after),
    )


def _kept(rule: Mapping[str, Any] | None) -> RuleView | None:
    """Kept rules are as the settings have them: snake_case, a function by its name."""
    if rule is None:
        return None
    said = {camel(name): value for name, value in rule.get("policy", {}).items()}
    return msgspec.convert({**rule, "policy": said}, RuleView)
