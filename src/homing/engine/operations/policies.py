"""The retry rules in force: the configured rules plus changes made at runtime, and their conversion to views.

A change is stored with its author, its time, and the rule before and after it. The change applies from the
next decision on. Before a decision, every other process reads the rules if its own copy is five seconds old.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from homing.core.errors import ConfigError, StoreError
from homing.core.ids import uuid7
from homing.core.notifications import Mode
from homing.core.plain_values import plain_text
from homing.core.ports.runtime import Clock, RandomSource
from homing.core.ports.stores import Entry, Registry
from homing.core.request_decoding import to_camel_case
from homing.core.retry.backoff import bounds_ms
from homing.core.retry.policy import (
    MatchKeys,
    PolicyBook,
    Preset,
    RetryPolicy,
    Rule,
    clamp_durations,
    decode_rule,
)
from homing.core.retry.policy_views import (
    Delay,
    KeysView,
    PolicyChangeView,
    PolicyExplanation,
    PolicyFields,
    RuleSource,
    RuleView,
)
from homing.core.times import moment
from homing.engine.operations.explain import policy_view

log = logging.getLogger("homing.policies")


RULES_MAX_AGE_MS = 5_000
"""Age at which a copy of the rules is read from the store again before a decision."""

EVERY_TENANT = "*"
"""Tenant under which reference data that belongs to no tenant is stored."""


_RULE, _CHANGE = "policy", "policy_change"


class PolicyChange(Struct, frozen=True, kw_only=True, rename="camel"):
    """A stored change of one rule."""

    rule: str
    who: str
    at: int
    why: str = ""
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None


class Policies:
    """Holds the rules in force, and changes them at runtime."""

    def __init__(
        self,
        preset: Preset,
        rules: Iterable[Rule],
        *,
        registry: Registry,
        clock: Clock,
        random_source: RandomSource,
    ) -> None:
        configured = tuple(rules)
        self._configured = {rule.name: rule for rule in configured}
        self._preset = preset
        self._registry = registry
        self._clock = clock
        self._random_source = random_source
        self._seen: tuple[tuple[str, int, int], ...] = ()
        """Name, version and time of each rule that was read. A version alone does not identify a rule: it is
        used again if the store goes back to an earlier state."""
        self._read_ms: int | None = None
        """Monotonic time at which the latest read of the rules began. None before it, and if it failed."""
        self._reads = 0
        self._newest_read = 0
        """Number of the latest read whose result is in force."""
        self._reading: asyncio.Task[None] | None = None
        self.book = PolicyBook(preset, configured)
        self.changed: Mapping[str, Entry] = {}
        """Entries of the rules that were added or replaced at runtime, by rule name."""
        self.after_change: Callable[[], Awaitable[None]] | None = None
        """Function that is called after a change by this process. None if there is nothing to do then."""
        self.read_along: Callable[[], Awaitable[None]] | None = None
        """Function that reads other changes made at runtime, whenever the rules are read. None if there are
        no others."""

    async def refresh(self, *, max_age_ms: int = 0) -> None:
        """Reads the changes that any process made at runtime, and puts them in force.

        Does nothing if the last read began less than `max_age_ms` ago. Raises `StoreError` if the rules
        cannot be read; the previous rules then stay in force.
        """
        now = self._clock.monotonic_ms()
        if max_age_ms and self._read_ms is not None and now - self._read_ms < max_age_ms:
            return
        self._read_ms = now
        self._reads += 1
        number = self._reads
        try:
            self._put_in_force(number, await self._entries())
            if self.read_along is not None:
                await self.read_along()
        except BaseException:
            self._read_ms = None
            raise

    def _put_in_force(self, number: int, entries: Sequence[Entry]) -> None:
        """Puts the rules of a read in force, unless one that began later has already been."""
        if number < self._newest_read:
            return
        self._newest_read = number
        seen = tuple((entry.key, entry.version, entry.updated_at) for entry in entries)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self.book = self._book(entries)
            self.changed = {entry.key: entry for entry in entries if not entry.value.get("removed")}
        except ConfigError as error:  # written by a process with another preset or other rules
            log.error(
                "the stored rules are invalid with this configuration; the previous rules stay in force: %s",
                error,
            )

    async def try_refresh(self) -> None:
        """Reads the rules if they are five seconds old.

        If the store is unavailable or a caller has no more time, keeps them for another five seconds, so
        that callers are not delayed again and again.
        """
        try:
            await self.refresh(max_age_ms=RULES_MAX_AGE_MS)
        except asyncio.CancelledError:
            self._read_ms = self._clock.monotonic_ms()
            raise
        except StoreError as error:
            self._read_ms = self._clock.monotonic_ms()
            log.warning("cannot read the retry rules; the previous rules stay in force: %s", error)

    def recent_book(self) -> PolicyBook:
        """Returns the rules in force, for callers that cannot wait.

        If they are five seconds old, they are read again in the background, for the next call.
        """
        age_ms = RULES_MAX_AGE_MS if self._read_ms is None else self._clock.monotonic_ms() - self._read_ms
        if age_ms >= RULES_MAX_AGE_MS and (self._reading is None or self._reading.done()):
            with suppress(RuntimeError):  # no event loop runs in this thread
                self._reading = asyncio.get_running_loop().create_task(self.try_refresh())
        return self.book

    async def set(self, rule: Rule, *, who: str, why: str = "") -> PolicyChange:
        """Adds or replaces a rule. Raises `ConfigError` and changes nothing if the rules would be invalid."""
        if rule.policy.call is not UNSET:
            raise ConfigError("call", "is a function, which can be set only in the configuration")
        return await self._change(rule.name, rule, who, why)

    async def check(self, rule: Rule) -> None:
        """Raises `ConfigError` if the rules in force would be invalid with this rule. Changes nothing."""
        await self.refresh()
        PolicyBook(self._preset, (*(one for one in self.book.rules if one.name != rule.name), rule))

    async def remove(self, name: str, *, who: str, why: str = "") -> PolicyChange:
        """Removes a rule, even a configured one. Raises `ConfigError` if there is no such rule."""
        await self.refresh()
        if name not in {rule.name for rule in self.book.rules}:
            raise ConfigError("rule", f"{name!r} does not exist; rules in force: {self._rule_names()}")
        return await self._change(name, None, who, why)

    async def changes(self, limit: int = 50) -> tuple[PolicyChange, ...]:
        """Returns the changes made at runtime, newest first."""
        entries = await self._registry.list_entries(EVERY_TENANT, _CHANGE, limit=limit)
        return tuple(msgspec.convert(entry.value, PolicyChange) for entry in entries)

    async def _change(self, name: str, rule: Rule | None, who: str, why: str) -> PolicyChange:
        given = {} if rule is None else {key: getattr(rule, key) for key in MatchKeys.__struct_fields__}
        for where, text in {"name": name, "who": who, "why": why, **given}.items():
            if text is not None:
                plain_text(text, where)
        while True:
            entries = await self._entries()
            rules = self._rules(entries)
            current = rules.pop(name, None)
            stored = next((entry for entry in entries if entry.key == name), None)
            value: dict[str, Any] = {"rule": _to_json(rule)} if rule else {"removed": True}
            entry = Entry(
                tenant=EVERY_TENANT,
                kind=_RULE,
                key=name,
                value=value,
                version=stored.version if stored else 0,
            )
            # Raises if the new rule is invalid. Its durations are not clamped, unlike those of stored rules.
            PolicyBook(self._preset, (*rules.values(), *((rule,) if rule else ())))
            now = self._clock.now_ms()
            change = PolicyChange(
                rule=name,
                who=who,
                at=now,
                why=why,
                before=_to_json(current) if current else None,
                after=_to_json(rule) if rule else None,
            )
            note = Entry(
                tenant=EVERY_TENANT,
                kind=_CHANGE,
                # The newest change sorts first.
                key=f"{10**15 - now:015d}-{uuid7(now, self._random_source.getrandbits(74))}",
                value=msgspec.to_builtins(change),
            )
            if await self._registry.put([entry, note], who=who) is not None:
                await self.refresh()
                await self._call_after_change()
                return change

    async def _call_after_change(self) -> None:
        if self.after_change is not None:
            try:
                await self.after_change()
            except StoreError as error:  # a worker does it later
                log.warning("the retry delays for SQL functions are not written yet: %s", error)

    async def _entries(self) -> tuple[Entry, ...]:
        found: list[Entry] = []
        while True:
            after = found[-1].key if found else ""
            page = await self._registry.list_entries(EVERY_TENANT, _RULE, after=after, limit=500)
            found.extend(page)
            if len(page) < 500:
                return tuple(found)

    def _book(self, entries: Iterable[Entry]) -> PolicyBook:
        return PolicyBook(self._preset, self._rules(entries).values())

    def _rules(self, entries: Iterable[Entry]) -> dict[str, Rule]:
        """Returns the configured and the stored rules by name.

        Clamps durations of stored rules that are too long.
        """
        rules = dict(self._configured)
        for entry in entries:
            if entry.value.get("removed"):
                rules.pop(entry.key, None)
            else:
                rules[entry.key] = clamp_durations(decode_rule(entry.value["rule"], f"policy.{entry.key}"))
        return rules

    def _rule_names(self) -> str:
        return ", ".join(rule.name for rule in self.book.rules) or "none"


def _to_json(rule: Rule) -> dict[str, Any]:
    """Returns a rule as JSON data, with a function replaced by its name."""

    def named(value: Any) -> str:
        return f"{value.__module__}:{value.__qualname__}"

    found: dict[str, Any] = msgspec.to_builtins(rule, enc_hook=named)
    return found


def explain_match_keys(
    book: PolicyBook, keys: MatchKeys, mode: Mode, rules: tuple[Rule, ...]
) -> PolicyExplanation:
    """Returns the policy that applies to these keys, with the origin of its fields and its delays."""
    found = book.resolve(keys, mode)
    return PolicyExplanation(
        keys=KeysView(**{name: getattr(keys, name) for name in keys.__struct_fields__}),
        mode=mode,
        policy=policy_view(found.policy),
        rule=found.rule,
        preset_rule=found.preset_rule,
        sources={to_camel_case(name): source for name, source in found.sources.items()},
        passed_over=found.passed_over,
        rules=tuple(rule.name for rule in rules),
        delays=tuple(retry_delays(found.policy)),
    )


def retry_delays(policy: RetryPolicy) -> Iterator[Delay]:
    """Yields the delay before each retry: its bounds, and the sum of the shortest delays so far."""
    total = last = 0
    for attempt in range(1, policy.max_attempts):
        low, high = bounds_ms(policy, attempt, last)
        total, last = total + low, high
        yield Delay(attempt=attempt, min_ms=low, max_ms=high, cumulative_min_ms=total)


def rule_view(rule: Rule, policies: Policies | None = None, *, preset: bool = False) -> RuleView:
    """Returns the view of a rule. Its origin is included if `policies` or `preset` is given."""
    keys = {name: getattr(rule, name) for name in MatchKeys.__struct_fields__}
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
    fields = {to_camel_case(name): value for name, value in rule.get("policy", {}).items()}
    return msgspec.convert({**rule, "policy": fields}, RuleView)
