"""The effects of changes to rows that both stores record: counts, sums by time, and registry entries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from homing.core.lifecycle.outcomes import RegistryPut
from homing.core.lifecycle.row_events import roll_up_counts
from homing.core.lifecycle.rows import Change
from homing.core.notifications import Channel, Content, Message, Recipient, Status
from homing.core.routing.delivery_modes import MODE_INFO
from homing.core.statistics import (
    LATENESS_BUCKETS,
    DeliveryCounts,
    GoalRollUp,
    lateness_bucket,
)
from homing.stores.common.codec import Column, encode

HOUR_MS = 3_600_000
MINUTE_MS = 60_000

MINUTES_KEPT_MS = 48 * HOUR_MS
"""How long the sums of single minutes are kept."""

_WHOSE = ("tenant", "channel", "provider")

ROLL_UP_KEY = ("hour_at", *_WHOSE)

SUMS = tuple(name for name in DeliveryCounts.__struct_fields__ if name not in _WHOSE)
"""Names of the hourly sums."""

MINUTE_KEY = ("minute_at", *_WHOSE)

LATENESS_SUMS = tuple(f"late_{bucket}" for bucket in range(LATENESS_BUCKETS))
"""Names of the sums by lateness, one for each bucket."""

MINUTE_SUMS = (*SUMS, "attempt_ms", *LATENESS_SUMS)
"""Names of the sums of single minutes."""

GOAL_KEY = ("hour_at", "tenant", "mode")

GOAL_SUMS = tuple(name for name in GoalRollUp.__struct_fields__ if name not in GOAL_KEY)
"""Names of the hourly sums by mode."""

EMPTY_MESSAGE = Message(recipient=Recipient(), content=Content())
"""Stands in for the message in events that do not contain it."""

Goal = tuple[str, bool, int]
"""(mode, whether its latency goal was met, lateness bucket) of a notification that was sent."""

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
    attempt_ms: int = 0
    """Sum of the durations of their attempts."""


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
                detail = goal = (mode, elapsed_ms <= _GOALS_MS[mode], lateness_bucket(elapsed_ms))
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
        if attempt is not None:
            kind.attempt_ms += attempt.latency_ms


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
