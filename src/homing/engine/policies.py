"""The retry rules in force: the configured ones plus changes made at runtime.

A change is stored with its author, time, and the rule before and after. It applies from the next decision on,
and other processes read it within seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from homing.core.errors import ConfigError
from homing.core.ids import uuid7
from homing.core.model import Entry
from homing.core.policy import PolicyBook, Preset, Rule, decode_rule, within_bounds
from homing.core.ports import Chance, Clock, Registry

log = logging.getLogger("homing.policies")

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
        self, preset: Preset, rules: Iterable[Rule], *, registry: Registry, clock: Clock, chance: Chance
    ) -> None:
        self._configured = {rule.name: rule for rule in rules}
        self._preset = preset
        self._registry = registry
        self._clock = clock
        self._chance = chance
        self._seen: tuple[tuple[str, int], ...] = ()
        self.book = PolicyBook(preset, self._configured.values())
        self.changed: Mapping[str, Entry] = {}
        """Entries of the rules that were added or replaced at runtime, by rule name."""

    async def refresh(self) -> None:
        """Reads changes that any process made at runtime."""
        entries = await self._entries()
        seen = tuple((entry.key, entry.version) for entry in entries)
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

    async def set(self, rule: Rule, *, who: str, why: str = "") -> PolicyChange:
        """Adds or replaces a rule. Raises `ConfigError` and changes nothing if the rules would be invalid."""
        if rule.policy.call is not UNSET:
            raise ConfigError("call", "is a function, which can be set only in the configuration")
        return await self._change(rule.name, rule, who, why)

    async def check(self, rule: Rule) -> None:
        """Raises `ConfigError` if `set` would reject the rule. Changes nothing."""
        await self.refresh()
        PolicyBook(self._preset, (*(one for one in self.book.rules if one.name != rule.name), rule))

    async def remove(self, name: str, *, who: str, why: str = "") -> PolicyChange:
        """Removes a rule, even if it is in the configuration file."""
        await self.refresh()
        if name not in {rule.name for rule in self.book.rules}:
            raise ConfigError("rule", f"{name!r} does not exist; rules in force: {self._rule_names()}")
        return await self._change(name, None, who, why)

    async def changes(self, limit: int = 50) -> tuple[PolicyChange, ...]:
        """Returns the changes made at runtime, newest first."""
        entries = await self._registry.list_entries(EVERY_TENANT, _CHANGE, limit=limit)
        return tuple(msgspec.convert(entry.value, PolicyChange) for entry in entries)

    async def _change(self, name: str, rule: Rule | None, who: str, why: str) -> PolicyChange:
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
                key=f"{10**15 - now:015d}-{uuid7(now, self._chance.getrandbits(74))}",  # newest sorts first
                value=msgspec.to_builtins(change),
            )
            if await self._registry.put([entry, note], who=who) is not None:
                await self.refresh()
                return change

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
                rules[entry.key] = within_bounds(decode_rule(entry.value["rule"], f"policy.{entry.key}"))
        return rules

    def _rule_names(self) -> str:
        return ", ".join(rule.name for rule in self.book.rules) or "none"


def _to_json(rule: Rule) -> dict[str, Any]:
    """Returns a rule as JSON data, with a function replaced by its name."""

    def named(value: Any) -> str:
        return f"{value.__module__}:{value.__qualname__}"

    found: dict[str, Any] = msgspec.to_builtins(rule, enc_hook=named)
    return found
