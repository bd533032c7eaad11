"""The effects of changes to rows that both stores record: counts, hourly sums and registry entries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from homing.core.lifecycle.outcomes import RegistryPut
from homing.core.lifecycle.row_events import roll_up_counts
from homing.core.lifecycle.rows import Change
from homing.core.notifications import Channel, Content, Message, Recipient, Status
from homing.core.routing.delivery_modes import MODE_INFO
from homing.core.statistics import GoalRollUp, RollUp
from homing.stores.common.codec import Column, encode

HOUR_MS = 3_600_000

ROLL_UP_KEY = ("hour_at", "tenant", "channel", "provider")

SUMS = tuple(name for name in RollUp.__struct_fields__ if name not in ROLL_UP_KEY)
"""Names of the hourly sums."""

GOAL_KEY = ("hour_at", "tenant", "mode")

GOAL_SUMS = tuple(name for name in GoalRollUp.__struct_fields__ if name not in GOAL_KEY)
"""Names of the hourly sums by mode."""

EMPTY_MESSAGE = Message(recipient=Recipient(), content=Content())
"""Stands in for the message in events that do not contain it."""

Goal = tuple[str, bool]
"""(mode, whether its latency goal was met) of a notification that was sent."""

Signature = tuple[
    str, Channel, str, Status | None, int, Status, int, Goal | tuple[()] | tuple[bool, str | None] | None
]
"""The properties of a change that decide how it is counted.

(tenant, channel, provider, status before, attempts before, status after, attempts after, detail). The detail
of an attempt is its goal, or () if it has none. The detail of a change with another cause is (bounced, event
of the receipt).
"""

_GOALS_MS = {mode.value: info.latency_goal_ms for mode, info in MODE_INFO.items()}
"""Latency goal by the value of the mode. Hashing a text is quicker than hashing an enum member."""

# Looked up once: up to Python 3.11, `Status.SENT` calls a method written in Python.
_SENT, _DELIVERED = Status.SENT, Status.DELIVERED


class ChangeKind(Struct):
    """Changes that have the same effect on the counts."""

    sums: Mapping[str, int]
    """The numbers that each change adds to the hourly sums, by name."""
    goal: Goal | None
    """Goal of the notifications that were sent. None if the changes send nothing, or if another system made
    the first attempt."""
    number: int = 0
    """Number of changes."""


class ChangeCounts:
    """Counts the changes of one call. Changes with the same effect are counted together."""

    def __init__(self) -> None:
        self.kinds: dict[Signature, ChangeKind] = {}

    def add(self, change: Change, number: int = 1) -> None:
        """Counts a change, which stands for `number` changes with the same effect."""
        row, attempt = change.row, change.attempt
        status, goal = row.status, None
        detail: Goal | tuple[()] | tuple[bool, str | None] | None = None
        if attempt is not None:
            provider, detail = attempt.provider, ()
            if (status is _SENT or status is _DELIVERED) and not row.attempts_before:
                mode = row.mode._value_
                elapsed_ms = attempt.started_at + attempt.latency_ms - row.aged_from
                detail = goal = (mode, elapsed_ms <= _GOALS_MS[mode])
        elif (cause := change.cause) is None:
            provider = row.provider
        else:
            provider = change.provider
            detail = (change.bounced, cause.name if cause.kind == "receipt" else None)
        signature = (
            row.tenant,
            row.channel,
            provider,
            change.before,
            change.attempts_before,
            status,
            row.attempts,
            detail,
        )
        kind = self.kinds.get(signature)
        if kind is None:
            kind = self.kinds[signature] = ChangeKind(roll_up_counts(change), goal)
        kind.number += number


def registry_rows(puts: Iterable[RegistryPut], now: int, who: str) -> list[tuple[Column, ...]]:
    """Returns the rows of registry entries, merged by their place and sorted by it. Newer fields win.

    A row is (tenant, kind, key, value, number of puts, now, who).
    """
    merged: dict[tuple[str, str, str], tuple[dict[str, Any], int]] = {}
    for put in puts:
        place = (put.tenant, put.kind, put.key)
        before, writes = merged.get(place, ({}, 0))
        merged[place] = ({**before, **put.value}, writes + 1)
    return [(*place, encode(value), writes, now, who) for place, (value, writes) in sorted(merged.items())]
