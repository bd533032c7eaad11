"""Counts, hourly sums and the outbox of the memory store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from msgspec import msgpack

from homing.core.lifecycle.events import Event
from homing.core.lifecycle.row_events import roll_up_counts
from homing.core.lifecycle.rows import Change, Row
from homing.core.lifecycle.views import optional_moment
from homing.core.notifications import Channel, Status
from homing.core.statistics import RollUp, Tally

HOUR_MS = 3_600_000

_Cells = dict[tuple[str, int], int]
"""Counts by (status value, attempts). The value hashes faster than the enum member."""
_ORDER = {status.value: number for number, status in enumerate(Status)}


class Ledger:
    """Tallies and roll-ups. They are updated with every change."""

    def __init__(self) -> None:
        self._cells: dict[str, _Cells] = {}
        self._purged: dict[str, _Cells] = {}
        self._hours: dict[tuple[int, str, Channel, str], dict[str, int]] = {}

    def record(self, change: Change) -> None:
        """Counts one change."""
        row = change.row
        cells = self._cells.setdefault(row.tenant, {})
        if change.before is not None:
            _add(cells, change.before, change.attempts_before, -1)
        _add(cells, row.status, row.attempts, 1)
        sums = roll_up_counts(change)
        if sums:
            key = (change.at - change.at % HOUR_MS, row.tenant, row.channel, change.provider)
            hour = self._hours.setdefault(key, {})
            for name, number in sums.items():
                hour[name] = hour.get(name, 0) + number

    def purge(self, row: Row) -> None:
        """Moves a purged row from the current counts to the purged ones."""
        _add(self._cells[row.tenant], row.status, row.attempts, -1)
        _add(self._purged.setdefault(row.tenant, {}), row.status, row.attempts, 1)

    def tenants(self) -> tuple[str, ...]:
        return tuple(sorted(self._cells))

    def tallies(self, tenant: str | None) -> tuple[Tally, ...]:
        tenants = self._cells if tenant is None else (tenant,)
        counts: _Cells = {}
        purged: _Cells = {}
        for name in tenants:
            _sum_up(counts, self._cells.get(name, {}))
            _sum_up(purged, self._purged.get(name, {}))
        cells = sorted({**counts, **purged}, key=lambda cell: (_ORDER[cell[0]], cell[1]))
        return tuple(
            Tally(Status(status), attempts, counts.get(cell, 0), purged.get(cell, 0))
            for cell in cells
            for status, attempts in (cell,)
        )

    def roll_ups(self, tenant: str | None, since: int) -> tuple[RollUp, ...]:
        """Returns the sums of the hours that end after `since`, the oldest first."""
        keys = [
            key for key in self._hours if key[0] + HOUR_MS > since and (tenant is None or key[1] == tenant)
        ]
        return tuple(
            RollUp(
                hour_at=optional_moment(hour_at),
                tenant=whose,
                channel=channel,
                provider=provider,
                **self._hours[key],
            )
            for key in sorted(keys)
            for hour_at, whose, channel, provider in (key,)
        )


class Outbox:
    """Unpublished events of each sink in the order of their commits."""

    def __init__(self) -> None:
        self._events: dict[str, dict[str, bytes]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._events.values()))

    def count(self, sink: str) -> int:
        return len(self._events.get(sink, ()))

    def add(self, sink: str, encoded: Iterable[tuple[str, bytes]]) -> None:
        """Appends events. An event whose id is already there is a repetition and is skipped."""
        waiting = self._events.setdefault(sink, {})
        for id, event in encoded:
            waiting.setdefault(id, event)

    def next(self, sink: str, limit: int) -> tuple[Event, ...]:
        """Returns the oldest events of a sink."""
        return tuple(map(_decode, islice(self._events.get(sink, {}).values(), max(0, limit))))

    def remove(self, sink: str, ids: Sequence[str]) -> None:
        for id in ids:
            self._events.get(sink, {}).pop(id, None)

    def drop(self, sink: str) -> int:
        return len(self._events.pop(sink, {}))

    def prune(self, until: int, limit: int) -> int:
        """Removes events that were created at or before `until`, and returns their number."""
        everything = [(sink, id, _decode(e)) for sink, all in self._events.items() for id, e in all.items()]
        old = [(sink, id) for sink, id, event in everything if event.at <= until]
        for sink, id in old[:limit]:
            del self._events[sink][id]
        return len(old[:limit])


def encode_events(events: Iterable[Event]) -> list[tuple[str, bytes]]:
    """Returns events as they are stored. Raises an error if one of them cannot be encoded."""
    return [(event.id, msgpack.encode(event)) for event in events]


_decode = msgpack.Decoder(Event).decode


def _add(cells: _Cells, status: Status, attempts: int, number: int) -> None:
    cell = (status.value, attempts)
    count = cells.get(cell, 0) + number
    assert count >= 0, f"the count of {status} notifications would become negative"
    if count:
        cells[cell] = count
    else:
        cells.pop(cell, None)


def _sum_up(total: _Cells, cells: _Cells) -> None:
    for cell, number in cells.items():
        total[cell] = total.get(cell, 0) + number
