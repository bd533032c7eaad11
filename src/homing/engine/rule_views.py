"""JSON views of retry rules, their changes and their delays, shared by the REST API and `--json`."""

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
    """Policy fields that a rule sets. Missing fields come from the preset. Durations are in milliseconds."""

    max_attempts: Annotated[int, Meta(ge=1, le=1000)] | UnsetType = UNSET
    """Maximum number of attempts at all providers together, including the first."""
    backoff: Backoff | UnsetType = UNSET
    base_ms: _From0 | UnsetType = UNSET
    factor: Annotated[float, Meta(ge=1, le=100)] | UnsetType = UNSET
    steps_ms: Annotated[tuple[_From0, ...], Meta(max_length=1000)] | UnsetType = UNSET
    """Delay after each attempt, for the `fixed` backoff. The last one repeats."""
    cap_ms: _From0 | UnsetType = UNSET
    """Upper limit of a delay. 0 means no limit."""
    jitter: Jitter | UnsetType = UNSET
    jitter_ratio: Annotated[float, Meta(ge=0, le=1)] | UnsetType = UNSET
    jitter_ms: _From0 | UnsetType = UNSET
    failover_after: Annotated[int, Meta(ge=1, le=1000)] | UnsetType = UNSET
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
        return PolicyPatch(**{name: getattr(self, name) for name in self.__struct_fields__ if name != "call"})


class RuleSource(StrEnum):
    """Origin of a rule in force."""

    PRESET = "preset"
    CONFIGURED = "configured"
    CHANGED = "changed"
    """Added or replaced at runtime."""


class RuleKeys(
    Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True
):
    """What a rule matches. `*` matches anything."""

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
    """Properties of a notification that rules match."""

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
    """Longest delay, with full jitter."""
    cumulative_min_ms: int
    """Sum of the shortest delays so far."""


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
    """Delays before each retry, up to the last attempt."""


def explained_keys(book: PolicyBook, keys: Keys, mode: Mode, rules: tuple[Rule, ...]) -> PolicyExplanation:
    """Returns the policy that applies to these keys, with its origin and its delays."""
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
    """Yields the delay before each retry: its bounds, and the sum of the shortest delays so far."""
    total = last = 0
    for attempt in range(1, policy.max_attempts):
        low, high = bounds_ms(policy, attempt, last)
        total, last = total + low, high
        yield Delay(attempt=attempt, min_ms=low, max_ms=high, cumulative_min_ms=total)


def rule_view(rule: Rule, policies: Policies | None = None, *, preset: bool = False) -> RuleView:
    """Returns the view of a rule. Its origin is included if `policies` or `preset` is given."""
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
    """Returns the view of a stored change."""
    return PolicyChangeView(
        rule=change.rule,
        who=change.who,
        at=moment(change.at),
        why=change.why,
        before=_stored_rule_view(change.before),
        after=_stored_rule_view(change.after),
    )


def _stored_rule_view(rule: Mapping[str, Any] | None) -> RuleView | None:
    """Returns the view of a stored rule, whose field names are in snake_case as in the settings."""
    if rule is None:
        return None
    fields = {camel(name): value for name, value in rule.get("policy", {}).items()}
    return msgspec.convert({**rule, "policy": fields}, RuleView)
