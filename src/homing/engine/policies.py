"""The policy book in force: the configured rules, and what was changed while running.

A change is kept with who, when, before and after, and holds from the next decision on; other processes
see it within seconds.
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
"""Reference data that belongs to no tenant is filed under this."""

_RULE, _CHANGE = "policy", "policy_change"


class PolicyChange(Struct, frozen=True, kw_only=True, rename="camel"):
    """One change, as it is kept."""

    rule: str
    who: str
    at: int
    why: str = ""
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None


class Policies:
    """Resolves policies; changes them at runtime."""

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
        """Rules in force that were added or replaced while running, by name."""

    async def refresh(self) -> None:
        """Reads what was changed at runtime, by whichever process."""
        entries = await self._entries()
        seen = tuple((entry.key, entry.version) for entry in entries)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self.book = self._book(entries)
            self.changed = {entry.key: entry for entry in entries if not entry.value.get("removed")}
        except ConfigError as error:  # written by a process with another preset or other rules
            log.error("the stored rules do not fit here, the ones in force stay: %s", error)

    async def set(self, rule: Rule, *, who: str, why: str = "") -> PolicyChange:
        """Adds or replaces a rule. The whole book is checked first; a bad rule changes nothing."""
        if rule.policy.call is not UNSET:
            raise ConfigError("call", "is a function, which can be set in the configuration only")
        return await self._change(rule.name, rule, who, why)

    async def check(self, rule: Rule) -> None:
        """Raises where the rule does not fit, as `set` would; changes nothing."""
        await self.refresh()
        PolicyBook(self._preset, (*(one for one in self.book.rules if one.name != rule.name), rule))

    async def remove(self, name: str, *, who: str, why: str = "") -> PolicyChange:
        """Takes a rule out, also one that the configuration file has."""
        await self.refresh()
        if name not in {rule.name for rule in self.book.rules}:
            raise ConfigError("rule", f"{name!r} does not exist; known are {self._known()}")
        return await self._change(name, None, who, why)

    async def changes(self, limit: int = 50) -> tuple[PolicyChange, ...]:
        """Newest first."""
        entries = await self._registry.list_entries(EVERY_TENANT, _CHANGE, limit=limit)
        return tuple(msgspec.convert(entry.value, PolicyChange) for entry in entries)

    async def _change(self, name: str, rule: Rule | None, who: str, why: str) -> PolicyChange:
        while True:
            entries = await self._entries()
            rules = self._rules(entries)
            current = rules.pop(name, None)
            stored = next((entry for entry in entries if entry.key == name), None)
            value: dict[str, Any] = {"rule": _plain(rule)} if rule else {"removed": True}
            entry = Entry(
                tenant=EVERY_TENANT,
                kind=_RULE,
                key=name,
                value=value,
                version=stored.version if stored else 0,
            )
            # The new rule is not cut: this raises if it does not fit.
            PolicyBook(self._preset, (*rules.values(), *((rule,) if rule else ())))
            now = self._clock.now_ms()
            change = PolicyChange(
                rule=name,
                who=who,
                at=now,
                why=why,
                before=_plain(current) if current else None,
                after=_plain(rule) if rule else None,
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
        """The configured and the stored rules by name. Too long durations of stored ones are cut."""
        rules = dict(self._configured)
        for entry in entries:
            if entry.value.get("removed"):
                rules.pop(entry.key, None)
            else:
                rules[entry.key] = within_bounds(decode_rule(entry.value["rule"], f"policy.{entry.key}"))
        return rules

    def _known(self) -> str:
        return ", ".join(rule.name for rule in self.book.rules) or "none"


def _plain(rule: Rule) -> dict[str, Any]:
    """A rule as data; a function by its name."""

    def named(value: Any) -> str:
        return f"{value.__module__}:{value.__qualname__}"

    found: dict[str, Any] = msgspec.to_builtins(rule, enc_hook=named)
    return found
