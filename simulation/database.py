"""The database of a simulation run: SQLite in memory, which logs its changes and fails inside transactions.

Looking at rows after a commit is not enough: one transaction can change a row twice, and a purge leaves
nothing to look at. So TEMP triggers record the old and the new row, in order. They belong to the connection,
and the code under test does not know of them. A rollback also removes what they have recorded.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn, Self

from msgspec import Struct, json
from msgspec.structs import replace

from homing.core.lifecycle.outcomes import AttemptRecord
from homing.core.lifecycle.rows import CauseRecord, Change, Row
from homing.core.lifecycle.states import WAITING
from homing.core.notifications import Message, Mode
from homing.core.ports.stores import SeenWorker
from homing.core.routing.breaker import Breaker
from homing.core.statistics import MinuteRollUp, RollUp, Tally
from homing.stores.common.codec import (
    ATTEMPT_FIELDS,
    CAUSE_FIELDS,
    StoredAttempt,
    StoredCause,
    StoredRow,
)
from homing.stores.common.row_columns import ROW_FIELDS
from homing.stores.sqlite import reads, reference_data, workers
from homing.stores.sqlite.accept import known_requests
from homing.stores.sqlite.memory_database import MemoryDatabase
from homing.stores.sqlite.statements import SqliteTransaction, json_row_without_seq


def _row(alias: str) -> str:
    return json_row_without_seq(alias, ROW_FIELDS[-1])


def _record(alias: str, fields: tuple[str, ...]) -> str:
    return f"json_array({', '.join(f'{alias}.{field}' for field in fields)})"


_REGISTRY_ENTRY = "json_array(NEW.tenant, NEW.kind, NEW.key, json(NEW.value))"

_OUTBOX_ROW = "json_array(NEW.sink, NEW.id, NEW.name, NEW.notification_id)"

_TRIGGERS = {
    # (table, event) → the columns (seq, number of the change, old, new) of the log
    ("homing_notifications", "INSERT"): f"NEW.seq, NEW.changes, NULL, {_row('NEW')}",
    ("homing_notifications", "UPDATE"): f"NEW.seq, OLD.changes, {_row('OLD')}, {_row('NEW')}",
    ("homing_notifications", "DELETE"): f"OLD.seq, OLD.changes, {_row('OLD')}, NULL",
    ("homing_attempts", "INSERT"): f"NEW.seq, NEW.change, NULL, {_record('NEW', ATTEMPT_FIELDS)}",
    ("homing_causes", "INSERT"): f"NEW.seq, NEW.change, NULL, {_record('NEW', CAUSE_FIELDS)}",
    ("homing_sink_events", "INSERT"): f"0, 0, NULL, {_OUTBOX_ROW}",
    ("homing_registry", "INSERT"): f"0, 0, NULL, {_REGISTRY_ENTRY}",
    ("homing_registry", "UPDATE"): f"0, 0, NULL, {_REGISTRY_ENTRY}",
}

_CREATE_LOG = """
CREATE TEMP TABLE simulation_log (
  number INTEGER PRIMARY KEY, kind TEXT NOT NULL, seq INTEGER, change INTEGER, old TEXT, new TEXT)
"""

_READ_LOG = "SELECT kind, seq, change, old, new FROM simulation_log ORDER BY number"

_LIVE = f"""
SELECT {_row("n")} FROM homing_notifications AS n
WHERE n.due_at IS NOT NULL OR n.lease_until IS NOT NULL ORDER BY n.seq
"""  # noqa: S608

_BY_ID = f"SELECT n.seq, {_row('n')} FROM homing_notifications AS n WHERE n.id = ?"  # noqa: S608

_ATTEMPTS = f"""
SELECT {_record("a", ATTEMPT_FIELDS)} FROM homing_attempts AS a WHERE a.seq = ? ORDER BY a.change
"""  # noqa: S608

_CAUSES = f"""
SELECT {_record("c", CAUSE_FIELDS)} FROM homing_causes AS c WHERE c.seq = ? ORDER BY c.change
"""  # noqa: S608

_DUE_QUEUES = """
SELECT lane, tenant, outlet, min(due_at) FROM homing_notifications WHERE due_at <= ? GROUP BY 1, 2, 3
"""

_HOUR_MS = 3_600_000

_DAY_MS = 24 * _HOUR_MS

_CELLS = "SELECT status, attempts, count FROM homing_tallies WHERE tenant = ? AND count <> 0"

_GOALS = "SELECT tenant, mode, sum(met), sum(missed) FROM homing_goals GROUP BY tenant, mode"


_decode_row = json.Decoder(StoredRow, strict=False).decode  # SQLite stores booleans as 0 and 1

_decode_attempt = json.Decoder(StoredAttempt).decode

_decode_cause = json.Decoder(StoredCause).decode

_decode_message = json.Decoder(Message).decode

_decode_entry = json.Decoder(tuple[str, str, str, dict[str, Any]]).decode


class Created(Struct, frozen=True):
    """A row that a transaction has inserted."""

    change: Change
    message: Message | None
    """The stored message, or None if there is none."""


class Changed(Struct, frozen=True):
    """A change of a row."""

    change: Change
    exact: bool = True
    """False if the row is one of those in between, and its due time is not known."""
    before: Row | None = None
    """The row before the change. None if one UPDATE stands for several changes."""


class Removed(Struct, frozen=True):
    """A row that a transaction has deleted, as it was before."""

    row: Row


class Registered(Struct, frozen=True):
    """A registry entry that a transaction has written."""

    tenant: str
    kind: str
    key: str
    value: Mapping[str, Any]


class OutboxRow(Struct, frozen=True, array_like=True):
    """An event that a transaction has written for one sink."""

    sink: str
    id: str
    name: str
    notification_id: str | None


Logged = Created | Changed | Removed | Registered | OutboxRow


class StoredNotification(Struct, frozen=True):
    """A row with its history."""

    row: Row
    attempts: tuple[AttemptRecord, ...]
    causes: tuple[CauseRecord, ...]


class StatementFault(Struct):
    """An error that strikes the next call at one of its statements. If it has fewer, nothing happens."""

    statement: int
    """Number of the statement. 1 is the BEGIN of a transaction, and 0 means its COMMIT."""
    full: bool
    """True if the disk is full, which ends the whole transaction. False if the database is locked."""

    @property
    def kind(self) -> str:
        return "disk full" if self.full else "database locked"

    def raise_error(self) -> NoReturn:
        error = sqlite3.OperationalError(f"simulated: {self.kind}")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL if self.full else sqlite3.SQLITE_BUSY
        raise error


class _FaultyCursor(sqlite3.Cursor):
    """Raises a fault when its statement has come."""

    fault: StatementFault | None = None

    def execute(self, sql: str, parameters: Any = (), /) -> Self:
        fault = self.fault
        if fault is not None and sql != "ROLLBACK":
            fault.statement -= 1
            if fault.statement == 0 or (fault.statement < 0 and sql == "COMMIT"):
                self.fault = None
                if fault.full and self.connection.in_transaction:
                    super().execute("ROLLBACK")  # SQLite does so itself
                fault.raise_error()
        return super().execute(sql, parameters)


class SimulatedDatabase(MemoryDatabase):
    """The one database of a run, and what the checkers read from it."""

    def __init__(self) -> None:
        super().__init__()
        self._reader = self.connection.cursor()
        self._healthy_cursor = self._cursor
        self._faulty_cursor = self.connection.cursor(_FaultyCursor)
        self.commits = 0
        """Number of transactions that were committed."""
        self._changes_seen = 0
        """SQLite's count of changes when the log was last read. If it is the same, the log is empty."""
        self._reader.execute(_CREATE_LOG)
        for (table, event), columns in _TRIGGERS.items():
            self._reader.execute(
                f"CREATE TEMP TRIGGER simulation_{table}_{event} AFTER {event} ON main.{table} BEGIN "  # noqa: S608
                f"INSERT INTO simulation_log (kind, seq, change, old, new) VALUES ('{table}', {columns}); END"
            )

    # Faults --------------------------------------------------------------------------------------

    def set_fault(self, fault: StatementFault) -> None:
        """Arms a fault, which strikes the next call once."""
        self._faulty_cursor.fault = fault
        self._cursor = self._faulty_cursor

    def clear_fault(self) -> None:
        """Disarms a fault that has not struck."""
        self._cursor = self._healthy_cursor

    @property
    def in_transaction(self) -> bool:
        return self.connection.in_transaction

    # The log -------------------------------------------------------------------------------------

    def take_log(self, now: int) -> list[Logged]:
        """Returns what was committed since the last call, in order, and empties the log."""
        if self.connection.total_changes == self._changes_seen:
            return []
        entries = self._reader.execute(_READ_LOG).fetchall()
        if entries:
            self._reader.execute("DELETE FROM simulation_log")
        self._changes_seen = self.connection.total_changes
        attempts = {(e[1], e[2]): _decode_attempt(e[4]) for e in entries if e[0] == "homing_attempts"}
        causes = {(e[1], e[2]): _decode_cause(e[4]) for e in entries if e[0] == "homing_causes"}
        found: list[Logged] = []
        for kind, seq, number, old, new in entries:
            if kind == "homing_registry":
                found.append(Registered(*_decode_entry(new)))
            elif kind == "homing_sink_events":
                found.append(json.decode(new, type=OutboxRow))
            elif kind != "homing_notifications":
                continue
            elif new is None:
                found.append(Removed(_decode_row(old)))
            elif old is None:
                row = _decode_row(new)
                change = Change(row, None, 0, now, None, causes.get((seq, number)))
                found.append(Created(change, self._message(seq)))
            else:
                found += _changes(seq, _decode_row(old), _decode_row(new), now, attempts, causes)
        return found

    # What the checkers read ----------------------------------------------------------------------

    def find_row(self, id: str) -> Row | None:
        """Returns the stored row, or None if it does not exist."""
        found = self._reader.execute(_BY_ID, (id,)).fetchone()
        return None if found is None else _decode_row(found[1])

    def find(self, id: str) -> StoredNotification | None:
        """Returns the stored row with its history, or None if it does not exist."""
        found = self._reader.execute(_BY_ID, (id,)).fetchone()
        if found is None:
            return None
        seq, row = found
        return StoredNotification(
            _decode_row(row),
            tuple(_decode_attempt(text) for (text,) in self._reader.execute(_ATTEMPTS, (seq,)).fetchall()),
            tuple(_decode_cause(text) for (text,) in self._reader.execute(_CAUSES, (seq,)).fetchall()),
        )

    def receipt_events(self) -> set[tuple[str, str]]:
        """Returns provider and event id of every receipt that the store knows."""
        return set(self._reader.execute("SELECT provider, event_id FROM homing_receipts").fetchall())

    def live(self) -> list[Row]:
        """Returns the rows that are waiting or leased."""
        return [_decode_row(text) for (text,) in self._reader.execute(_LIVE).fetchall()]

    def cells(self, tenant: str) -> Mapping[tuple[str, int], int]:
        """Returns the number of rows by (status, attempts)."""
        found = self._reader.execute(_CELLS, (tenant,)).fetchall()
        return {(status, attempts): count for status, attempts, count in found}

    def tallies(self, tenant: str) -> tuple[Tally, ...]:
        """Returns the counts that statistics show, including those of purged rows."""
        return reads.tallies(SqliteTransaction(self._reader, 0), tenant)

    def sums(self, tenant: str, now: int) -> tuple[tuple[RollUp, ...], tuple[MinuteRollUp, ...]]:
        """Returns the sums of each hour and those of each minute that statistics show, of the last day."""
        tx = SqliteTransaction(self._reader, now)
        return reads.roll_ups(tx, tenant, _DAY_MS), reads.minute_roll_ups(tx, tenant, _DAY_MS, _HOUR_MS)

    def goals(self) -> dict[tuple[str, Mode], tuple[int, int]]:
        """Returns how many notifications met and missed their latency goals, by tenant and mode."""
        found = self._reader.execute(_GOALS).fetchall()
        return {(tenant, Mode(mode)): (met, missed) for tenant, mode, met, missed in found}

    def breakers(self) -> Mapping[str, Breaker]:
        """Returns the stored breakers, by provider."""
        return reference_data.breakers(SqliteTransaction(self._reader, 0))

    def workers(self) -> tuple[SeenWorker, ...]:
        """Returns the workers that have sent heartbeats."""
        return workers.workers(SqliteTransaction(self._reader, 0))

    def has_request(self, tenant: str, key: str) -> bool:
        """Returns True if something is stored under this idempotency key."""
        return bool(known_requests(SqliteTransaction(self._reader, 0), [(tenant, key)]))

    def unpublished(self, *, ignored: str = "0") -> int:
        """Returns the number of events in the outbox, without those that are parked.

        `ignored` is an SQL condition about events that are not counted.
        """
        number: int = self._reader.execute(
            f"SELECT count(*) FROM homing_sink_events WHERE sink NOT LIKE 'parked:%' AND NOT ({ignored})"  # noqa: S608
        ).fetchone()[0]
        return number

    def due_queues(self, now: int) -> list[tuple[str, str, str, int]]:
        """Returns the queues with due rows: (lane, tenant, outlet, earliest due time)."""
        found: list[tuple[str, str, str, int]] = self._reader.execute(_DUE_QUEUES, (now,)).fetchall()
        return found

    def _message(self, seq: int) -> Message | None:
        found = self._reader.execute("SELECT message FROM homing_messages WHERE seq = ?", (seq,)).fetchone()
        return None if found is None else _decode_message(found[0])


def _changes(
    seq: int,
    old: Row,
    new: Row,
    now: int,
    attempts: Mapping[tuple[int, int], AttemptRecord],
    causes: Mapping[tuple[int, int], CauseRecord],
) -> Iterator[Logged]:
    """Yields the changes that one UPDATE stands for. An extended lease is none.

    Several receipts for one notification are written by one UPDATE. Of the rows in between, only the record
    of each receipt is stored, so they are put together from it and the last row.
    """
    status, number = old.status, old.attempts
    for change in range(old.changes + 1, new.changes + 1):
        cause, row, exact = causes.get((seq, change)), new, True
        if change < new.changes and cause is not None:
            waits = cause.after in WAITING
            exact = not waits or new.due_at is not None
            due_at = (new.due_at or now) if waits else None
            row = replace(new, status=cause.after, due_at=due_at, lease_until=None)
            if not waits:  # not reopened yet
                row.spent, row.holds, row.moves, row.free_move = (
                    old.spent,
                    old.holds,
                    old.moves,
                    old.free_move,
                )
        before = old if new.changes == old.changes + 1 else None
        yield Changed(Change(row, status, number, now, attempts.get((seq, change)), cause), exact, before)
        status, number = row.status, row.attempts
