"""Builds timers and bridges, from settings and from objects given in Python."""

from __future__ import annotations

from collections.abc import Mapping

from homing.compose.factories import BRIDGES, TIMERS, PlugInDependencies, build_from_settings
from homing.core.errors import ConfigError, InvalidRequest
from homing.core.notifications import Priority
from homing.core.ports.bridges import Bridge
from homing.core.ports.runtime import Clock
from homing.core.ports.timers import AssignedTimer, Timer
from homing.core.send_request import priority_of
from homing.settings import Settings

TimerArgument = Timer | AssignedTimer
"""A timer given in Python, for all priorities or for those that an `AssignedTimer` names."""

STORE_ALONE = "store"
"""Name that stands for no timer: workers of other processes find the notifications in the store."""


def build_timers(
    settings: Settings, given: Mapping[str, TimerArgument] | None = None
) -> dict[str, AssignedTimer]:
    """Builds the timers that the settings name, and adds those given in Python."""
    assigned: dict[str, set[Priority]] = {}
    tables = {name: dict(value) for name, value in settings.timers.items() if isinstance(value, Mapping)}
    for key, name in settings.timers.items():
        if isinstance(name, str):
            priority = _priority(key)
            if name != STORE_ALONE:
                assigned.setdefault(name, set()).add(priority)
    for name in tables:
        if name not in assigned:
            problem = f'is not assigned to a priority; for example, set critical = "{name}" in [timers]'
            raise ConfigError(f"timers.{name}", problem)
    found = {}
    for name, priorities in assigned.items():
        options = tables.get(name, {})
        kind = options.pop("kind", name)
        timer: Timer = build_from_settings("timers", name, kind, TIMERS, options)
        found[name] = AssignedTimer(timer, frozenset(priorities))
    for name, one in (given or {}).items():
        found[name] = one if isinstance(one, AssignedTimer) else AssignedTimer(one)
    return found


def build_bridges(
    settings: Settings, given: Mapping[str, Bridge] | None = None, clock: Clock | None = None
) -> dict[str, Bridge]:
    """Builds the bridges that the settings name, and adds those given in Python."""
    shared = PlugInDependencies(settings.http, clock.now_ms if clock is not None else None)
    found: dict[str, Bridge] = {}
    for name, table in settings.bridges.items():
        options = dict(table)
        kind = options.pop("kind", name)
        found[name] = build_from_settings("bridges", name, kind, BRIDGES, options, shared)
    return {**found, **(given or {})}


def _priority(key: str) -> Priority:
    try:
        return priority_of(key)
    except InvalidRequest as error:
        raise ConfigError(f"timers.{key}", str(error).removeprefix(f"{error.field}: ")) from None
