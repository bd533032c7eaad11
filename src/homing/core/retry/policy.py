"""Retry policies and the rules that choose between them.

The policy is resolved again at each decision, from the notification's match keys. The user's most specific
rule wins. A field that this rule leaves out comes from the most specific rule of the preset, then from the
mode, then from the defaults of `RetryPolicy`. If no rule of the preset matches, its fallback rule takes their
place, but the mode comes before it. For synchronous notifications, timeout and number of attempts always come
from the mode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import force_setattr, replace

from homing.core.errors import ConfigError
from homing.core.lifecycle.claims import LEASE_MARGIN_MS
from homing.core.notifications import Channel, Mode, Priority
from homing.core.routing.delivery_modes import mode_of
from homing.core.times import LONGEST_MS, LONGEST_TIMEOUT_MS, duration_problem


class Backoff(StrEnum):
    """How the delay grows with the number of attempts."""

    EXPONENTIAL = "exponential"
    LINEAR = "linear"
    FIBONACCI = "fibonacci"
    FIXED = "fixed"
    CALLABLE = "callable"


BACKOFF_FIELDS: dict[Backoff, frozenset[str]] = {
    Backoff.EXPONENTIAL: frozenset({"base_ms", "factor"}),
    Backoff.LINEAR: frozenset({"base_ms"}),
    Backoff.FIBONACCI: frozenset({"base_ms"}),
    Backoff.FIXED: frozenset({"steps_ms"}),
    Backoff.CALLABLE: frozenset({"call"}),
}
"""Fields from which each kind of backoff computes the delay. It ignores the fields of the other kinds."""


class Jitter(StrEnum):
    """How randomness changes the delay."""

    NONE = "none"
    PROPORTIONAL = "proportional"
    ADDITIVE = "additive"
    FULL = "full"
    EQUAL = "equal"
    DECORRELATED = "decorrelated"


class OnTimeout(StrEnum):
    """What happens after an ambiguous or lost attempt."""

    RETRY = "retry"
    FAILOVER = "failover"
    HOLD = "hold"


class FailoverWait(StrEnum):
    """What a move to the next provider waits for."""

    NONE = "none"
    """The next provider is tried at once. Backoff applies only before a provider is tried again."""
    BACKOFF = "backoff"
    """The backoff comes first, unless the breaker is open or the provider is at fault."""


class BounceFailover(StrEnum):
    """Whether a bounce caused by the recipient fails over to the next provider."""

    UNLESS_RECIPIENT = "unless_recipient"
    ALWAYS = "always"


DelayFunction = Callable[[int], float]
"""Function that returns the delay in milliseconds after the attempt with this number."""


class RetryPolicy(Struct, frozen=True, kw_only=True):
    """How often, how soon and for how long a notification is retried."""

    max_attempts: int = 6
    """Maximum number of attempts, including the first. Moves at once to another provider do not count."""
    backoff: Backoff = Backoff.EXPONENTIAL
    base_ms: int = 30_000
    """Delay after the first attempt, from which later delays grow. A `fixed` backoff does not use it, and a
    `callable` one only if its function fails."""
    factor: float = 2.0
    """For `exponential`: ratio of each delay to the one before it."""
    steps_ms: tuple[int, ...] = ()
    """For `fixed`: delay after each attempt. The last delay repeats."""
    cap_ms: int = 0
    """Maximum delay before jitter, at most seven days. 0 means no cap other than these seven days."""
    jitter: Jitter = Jitter.NONE
    jitter_ratio: float = 0.3
    """For `proportional`: maximum jitter as a fraction of the delay."""
    jitter_ms: int = 0
    """For `additive`: maximum jitter."""
    failover_after: int = 1
    """Number of failures at a provider after which the next provider is tried."""
    failover_wait: FailoverWait = FailoverWait.NONE
    timeout_ms: int = 30_000
    """Maximum duration of one attempt."""
    on_timeout: OnTimeout = OnTimeout.RETRY
    max_age_ms: int = 2 * 86_400_000
    """Age after which a notification that no provider has accepted becomes a dead letter."""
    bounce_failover: BounceFailover = BounceFailover.UNLESS_RECIPIENT
    call: DelayFunction | None = None
    """For `callable`: function that returns the delay. Given from Python, or as `module:name` in the
    settings."""

    def __post_init__(self) -> None:
        for name, problem in policy_problems(self):
            raise ConfigError(name, problem)


_ENUMS: dict[str, type[StrEnum]] = {
    "backoff": Backoff,
    "jitter": Jitter,
    "failover_wait": FailoverWait,
    "on_timeout": OnTimeout,
    "bounce_failover": BounceFailover,
}


class PolicyPatch(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The fields of a policy that a rule sets. The other fields come from the preset, mode or defaults."""

    max_attempts: int | UnsetType = UNSET
    backoff: Backoff | UnsetType = UNSET
    base_ms: int | UnsetType = UNSET
    factor: float | UnsetType = UNSET
    steps_ms: tuple[int, ...] | UnsetType = UNSET
    cap_ms: int | UnsetType = UNSET
    jitter: Jitter | UnsetType = UNSET
    jitter_ratio: float | UnsetType = UNSET
    jitter_ms: int | UnsetType = UNSET
    failover_after: int | UnsetType = UNSET
    failover_wait: FailoverWait | UnsetType = UNSET
    timeout_ms: int | UnsetType = UNSET
    on_timeout: OnTimeout | UnsetType = UNSET
    max_age_ms: int | UnsetType = UNSET
    bounce_failover: BounceFailover | UnsetType = UNSET
    call: DelayFunction | UnsetType = UNSET

    def __post_init__(self) -> None:
        """Replaces plain strings by the members of their enums."""
        for name, kind in _ENUMS.items():
            value = getattr(self, name)
            if value is UNSET or type(value) is kind:
                continue
            if value not in list(kind):
                raise ConfigError(name, f"is {value!r}; it must be one of {', '.join(kind)}")
            force_setattr(self, name, kind(value))

    def given(self) -> dict[str, Any]:
        """Returns the values of the fields that are set, by name."""
        return {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not UNSET}


class MatchKeys(Struct, frozen=True):
    """Properties by which rules match a notification. The order of the fields breaks ties between rules."""

    tenant: str
    type: str
    origin: str
    channel: Channel
    priority: Priority


_KEYS = MatchKeys.__struct_fields__


class Rule(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Policy fields for the notifications that match the rule. A key that is left out or `*` matches all."""

    name: str
    tenant: str = "*"
    type: str = "*"
    origin: str = "*"
    channel: str = "*"
    priority: str = "*"
    policy: PolicyPatch = PolicyPatch()

    def __post_init__(self) -> None:
        if self.priority == "normal":
            force_setattr(self, "priority", Priority.MEDIUM.value)
        for key, allowed in (("channel", Channel), ("priority", Priority)):
            if (value := getattr(self, key)) != "*" and value not in [member.value for member in allowed]:
                names = ", ".join(member.value for member in allowed)
                raise ConfigError(
                    f"policy.{self.name}.{key}", f"is {value!r}; it must be one of {names} or *"
                )

    @property
    def specificity(self) -> tuple[int, tuple[bool, ...]]:
        """Sort key: the number of keys that the rule names, then a flag per key of `MatchKeys`."""
        named = tuple(getattr(self, key) != "*" for key in _KEYS)
        return sum(named), named

    def covers(self, other: Rule) -> bool:
        """Returns True if every notification that matches `other` matches this rule as well."""
        return all(getattr(self, key) in ("*", getattr(other, key)) for key in _KEYS)

    def overlaps_with(self, other: Rule) -> bool:
        """Returns True if a notification could match both rules."""
        return all("*" in (mine := {getattr(self, k), getattr(other, k)}) or len(mine) == 1 for k in _KEYS)

    def matches(self, keys: MatchKeys) -> bool:
        """Returns True if a notification with these keys matches the rule."""
        return all(getattr(self, key) in ("*", getattr(keys, key)) for key in _KEYS)


class Preset(Struct, frozen=True, kw_only=True):
    """A named set of rules.

    `fallback` names the rule for notifications that match no other rule. Their timeout and number of attempts
    come from their mode.
    """

    name: str
    rules: tuple[Rule, ...]
    fallback: str
    reject_unmatched_locale: bool = False
    """True if a request whose Accept-Language matches no locale is rejected by default."""
    sent_retention_ms: int | None = None
    """How long `sent` notifications are kept unless the settings say so. None means the usual time."""
    requires_all_locales: bool = False
    """True if the service and the worker do not start while a template is missing in a declared locale."""
    default_channel: str = ""
    """Channel of requests that name none, or `both`. Empty if such requests are rejected."""


class Resolution(Struct, frozen=True, kw_only=True):
    """A policy, with the origin of each of its fields."""

    policy: RetryPolicy
    rule: str | None
    """Name of the user's rule that applies. None if no rule of the user matches."""
    preset_rule: str
    """Name of the preset's rule that applies."""
    sources: dict[str, str]
    """Field → `rule NAME`, `preset NAME/RULE`, `mode NAME` or `default`."""
    passed_over: tuple[str, ...]
    """Names of the user's other rules that match but are less specific."""


class PolicyBook:
    """The preset and the user's rules. Immutable: a change at runtime creates a new book."""

    def __init__(self, preset: Preset, rules: Iterable[Rule] = ()) -> None:
        self.preset = preset
        self.rules = tuple(rules)
        self._cached = lru_cache(maxsize=4096)(self._resolve)
        self.policy_for = lru_cache(maxsize=4096)(self._policy_for)
        """Cached function that returns the policy for the match keys, as separate arguments, and a mode. It
        is called once per claim."""
        try:
            _check_rules(preset, self.rules)
        except TypeError:  # a delay function that has no hash
            _check_rules.__wrapped__(preset, self.rules)
        self.longest_timeout_ms = max(
            [MODE_DEFAULTS[mode]["timeout_ms"] for mode in Mode]
            + [t for rule in (*preset.rules, *self.rules) if (t := rule.policy.timeout_ms) is not UNSET]
        )

    def resolve(self, keys: MatchKeys, mode: Mode) -> Resolution:
        """Returns the policy for these keys, with the origin of each field."""
        return self._cached(keys, mode)

    def policy(self, keys: MatchKeys, mode: Mode) -> RetryPolicy:
        """Returns the policy for these keys."""
        return self._cached(keys, mode).policy

    def combinations(self) -> Iterator[tuple[Rule, RetryPolicy]]:
        """Yields every combination of a user's rule and a rule of the preset, with the resulting policy.

        A combination is a rule that matches what both match. The first combination that matches a
        notification has its number of attempts and its delays, unless the request sets `bulk`.
        """
        everything = Rule(name="*")
        for mine in (*sorted(self.rules, key=_specificity, reverse=True), None):
            for below in (*sorted(self.preset.rules, key=_specificity, reverse=True), None):
                one, other = mine or everything, below or everything
                if one.overlaps_with(other):
                    yield from self._by_priority(_intersection(one, other), mine, below)

    def _by_priority(
        self, both: Rule, mine: Rule | None, below: Rule | None
    ) -> Iterator[tuple[Rule, RetryPolicy]]:
        """Yields a combination, and before it those priorities whose mode has another number of attempts."""
        if both.priority != "*":
            mode = mode_of(synchronous=False, type_="", priority=Priority(both.priority), bulk=False)
            yield both, _layer(self.preset, mine, below, mode, ()).policy
            return
        usual = _layer(self.preset, mine, below, Mode.STANDARD, ()).policy
        for priority in Priority:
            mode = mode_of(synchronous=False, type_="", priority=priority, bulk=False)
            policy = _layer(self.preset, mine, below, mode, ()).policy
            if policy.max_attempts != usual.max_attempts:
                yield replace(both, priority=priority.value), policy
        yield both, usual

    def _policy_for(
        self, tenant: str, type: str, origin: str, channel: Channel, priority: Priority, mode: Mode
    ) -> RetryPolicy:
        return self._resolve(MatchKeys(tenant, type, origin, channel, priority), mode).policy

    def _resolve(self, keys: MatchKeys, mode: Mode) -> Resolution:
        mine = _best(self.rules, keys)
        others = tuple(
            r.name for r in self.rules if r.matches(keys) and (mine is None or r.name != mine.name)
        )
        return _layer(self.preset, mine, _best(self.preset.rules, keys), mode, others)


MODE_DEFAULTS: dict[Mode, dict[str, int]] = {
    Mode.SYNCHRONOUS: {"timeout_ms": 2_000, "max_attempts": 1},
    Mode.PRIORITY: {"timeout_ms": 15_000, "max_attempts": 3},
    Mode.STANDARD: {"timeout_ms": 30_000, "max_attempts": 6},
    Mode.BULK: {"timeout_ms": 30_000, "max_attempts": 6},
}
"""Policy fields that a mode sets, unless a rule sets them. Rules cannot change those of `synchronous`."""

LONGEST_MODE_TIMEOUT_MS = max(fields["timeout_ms"] for fields in MODE_DEFAULTS.values())
"""Longest timeout that an attempt has if no rule sets another one."""

DEFAULT_LEASE_MS = LONGEST_MODE_TIMEOUT_MS + LEASE_MARGIN_MS
"""Length of a worker's leases if `worker.lease_ms` is 0."""


def _layer(
    preset: Preset, mine: Rule | None, matching: Rule | None, mode: Mode, others: tuple[str, ...]
) -> Resolution:
    """Returns the policy of the mode, a rule of the preset and the user's rule, one upon the other.

    `matching` is the rule of the preset that matches. If it is None, the fallback rule is used, and the mode
    overrides it.
    """
    below = matching or _fallback(preset)
    by_mode = (f"mode {mode.value}", dict(MODE_DEFAULTS[mode]))
    layers: list[tuple[str, dict[str, Any]]] = [
        by_mode,
        (f"preset {preset.name}/{below.name}", below.policy.given()),
    ]
    if matching is None:
        layers.reverse()
    if mine is not None:
        layers.append((f"rule {mine.name}", mine.policy.given()))
    if mode is Mode.SYNCHRONOUS:
        layers.append(by_mode)  # rules cannot extend the timeout of a synchronous send or add attempts
    values: dict[str, Any] = {}
    sources = dict.fromkeys(RetryPolicy.__struct_fields__, "default")
    for source, given in layers:
        if 0 < values.get("cap_ms", 0) < given.get("base_ms", 0) and "cap_ms" not in given:
            given = {**given, "cap_ms": given["base_ms"]}  # a longer base raises a cap from a lower layer
        values.update(given)
        sources.update(dict.fromkeys(given, source))
    return Resolution(
        policy=RetryPolicy(**values),
        rule=mine.name if mine else None,
        preset_rule=below.name,
        sources=sources,
        passed_over=others,
    )


@lru_cache(maxsize=32)
def _check_rules(preset: Preset, rules: tuple[Rule, ...]) -> None:
    """Raises `ConfigError` if a rule is invalid on its own or together with the preset and a mode.

    A book with the same rules need not be checked again.
    """
    _check_names(rules)
    for mode in Mode:
        for rule in (*preset.rules, *rules):
            _check(preset, rule, mode)


def _check(preset: Preset, rule: Rule, mode: Mode) -> None:
    below: list[Rule | None] = [other for other in preset.rules if other.overlaps_with(rule)]
    if not any(other is not None and other.covers(rule) for other in below):
        below.append(None)
    for one in (rule,) if rule in preset.rules else below:
        try:
            _layer(preset, rule, one, mode, ())
        except ConfigError as error:
            raise ConfigError(f"policy.{rule.name}.{error.field}", error.message.partition(": ")[2]) from None


def _fallback(preset: Preset) -> Rule:
    return next(rule for rule in preset.rules if rule.name == preset.fallback)


def policy_problems(policy: RetryPolicy) -> list[tuple[str, str]]:
    """Returns (field, problem) for every invalid field. A problem says what is allowed."""
    p = policy
    checks = (
        (1 <= p.max_attempts <= 1000, "max_attempts", f"is {p.max_attempts}; it must be from 1 to 1000"),
        (p.base_ms >= 0, "base_ms", f"is {p.base_ms}; a delay cannot be negative"),
        (p.cap_ms >= 0, "cap_ms", f"is {p.cap_ms}; a cap cannot be negative; 0 means no cap"),
        *_too_long(p),
        (
            "base_ms" not in BACKOFF_FIELDS[p.backoff] or not 0 < p.cap_ms < p.base_ms,
            "cap_ms",
            f"is {p.cap_ms}, below base_ms {p.base_ms}; the cap must be at least the base",
        ),
        (1 <= p.factor <= 100, "factor", f"is {p.factor}; it must be from 1 to 100"),
        (all(s >= 0 for s in p.steps_ms), "steps_ms", "has a negative delay; delays are 0 or more"),
        (
            p.backoff is not Backoff.FIXED or bool(p.steps_ms),
            "steps_ms",
            "is empty; a fixed backoff needs at least one delay",
        ),
        (
            p.backoff is not Backoff.CALLABLE or p.call is not None,
            "call",
            "is missing; a callable backoff needs a function of the attempt number",
        ),
        (0 <= p.jitter_ratio <= 1, "jitter_ratio", f"is {p.jitter_ratio}; it must be from 0 to 1"),
        (p.jitter_ms >= 0, "jitter_ms", f"is {p.jitter_ms}; jitter cannot be negative"),
        (p.failover_after >= 1, "failover_after", f"is {p.failover_after}; it must be at least 1"),
        (p.timeout_ms >= 1, "timeout_ms", f"is {p.timeout_ms}; it must be at least 1"),
        (p.max_age_ms >= 1, "max_age_ms", f"is {p.max_age_ms}; it must be at least 1"),
        (
            p.timeout_ms <= p.max_age_ms,
            "max_age_ms",
            f"is {p.max_age_ms}, below timeout_ms {p.timeout_ms}; it must be at least as long",
        ),
    )
    return [(name, problem) for ok, name, problem in checks if not ok]


_LONGEST_MS = {
    **dict.fromkeys(("base_ms", "cap_ms", "jitter_ms", "max_age_ms"), LONGEST_MS),
    "timeout_ms": LONGEST_TIMEOUT_MS,
}
"""Maximum of each duration, by field of `RetryPolicy`."""


def _too_long(policy: RetryPolicy) -> list[tuple[bool, str, str]]:
    found = [(name, getattr(policy, name), most_ms) for name, most_ms in _LONGEST_MS.items()]
    found.append(("steps_ms", max(policy.steps_ms, default=0), LONGEST_MS))
    return [(ms <= most, name, duration_problem(ms, most_ms=most) or "") for name, ms, most in found]


def clamp_durations(rule: Rule) -> Rule:
    """Returns the rule with durations cut to the maximum allowed.

    Older releases stored rules with longer durations, which must not make the other stored rules unreadable.
    """
    given = rule.policy.given()
    cut: dict[str, Any] = {
        name: most_ms for name, most_ms in _LONGEST_MS.items() if given.get(name, 0) > most_ms
    }
    if any(step > LONGEST_MS for step in given.get("steps_ms", ())):
        cut["steps_ms"] = tuple(min(step, LONGEST_MS) for step in given["steps_ms"])
    return replace(rule, policy=replace(rule.policy, **cut)) if cut else rule


def decode_rule(raw: Any, where: str) -> Rule:
    """Decodes a rule from the settings or a command.

    Raises `ConfigError` naming an unknown or invalid key.
    """
    try:
        return msgspec.convert(raw, Rule)
    except msgspec.ValidationError as error:
        raise ConfigError(where, str(error)) from None


def _specificity(rule: Rule) -> tuple[int, tuple[bool, ...]]:
    return rule.specificity


def _intersection(one: Rule, other: Rule) -> Rule:
    """Returns a rule that matches what both rules match."""
    return replace(one, **{key: getattr(other if getattr(one, key) == "*" else one, key) for key in _KEYS})


def _best(rules: tuple[Rule, ...], keys: MatchKeys) -> Rule | None:
    matching = [rule for rule in rules if rule.matches(keys)]
    return max(matching, key=lambda rule: rule.specificity, default=None)


def _check_names(rules: tuple[Rule, ...]) -> None:
    seen: set[str] = set()
    for rule in rules:
        if rule.name in seen:
            raise ConfigError(f"policy.{rule.name}", "appears twice; rule names must differ")
        seen.add(rule.name)
