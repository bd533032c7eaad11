"""A PostgreSQL database as the source or the target of a copy.

Each page of a target is written with COPY, together with the progress.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast
from uuid import UUID

from msgspec import json
from msgspec.structs import replace

from homing.core.errors import SchemaError, StoreError
from homing.core.lifecycle.states import LIVE
from homing.stores.common.codec import Column, decode_ids, encode
from homing.stores.common.copy import COPY_PARTS, NOTIFICATIONS, CopyPart, CopyProgress, Key, Record
from homing.stores.postgres import migrations
from homing.stores.postgres.address import parse_database_url
from homing.stores.postgres.change_recorder import fold_ledger
from homing.stores.postgres.columns import MESSAGE, STATE, clean, is_id, message_columns, state_columns
from homing.stores.postgres.connection import Database
from homing.stores.postgres.migrations import migrate
from homing.stores.postgres.rows import SELECTED, queue_of, rows_from
from homing.stores.postgres.statements import PostgresTransaction
from homing.stores.postgres.transaction_limits import DEFAULT_LIMITS

_decode_key = json.Decoder(tuple[str | int, ...]).decode

_TIMEOUT_S = 120.0

_LIMITS = replace(DEFAULT_LIMITS, total_ms=0)
"""The last step analyzes all tables, which may take long. No worker uses the store meanwhile."""

_TABLES = {"notifications": "messages"}
"""Tables that hold one row per record of a part, by part name, if the two names differ."""

_UUIDS = {"dedups": ("id",), "receipts": ("notification_id",)}

_COPIES = "SELECT source, ended_at IS NOT NULL FROM homing.copies"

_BEGIN = "INSERT INTO homing.copies (source, began_at) VALUES ($1, homing.now_ms())"

_PROGRESS = "SELECT part, after, number FROM homing.copied_parts"

_WRITE_PROGRESS = """
INSERT INTO homing.copied_parts AS p (part, after, number) VALUES ($1, $2, $3)
ON CONFLICT (part) DO UPDATE SET after = excluded.after, number = excluded.number
WHERE p.number < excluded.number
"""

_END = "UPDATE homing.copies SET ended_at = homing.now_ms() WHERE source = $1"

_WORKERS = "SELECT worker FROM homing.leads WHERE lead_until > homing.now_ms() ORDER BY worker"

_ACTIVE_WORKERS = """
SELECT worker FROM homing.live WHERE lease_until > homing.now_ms()
UNION SELECT worker FROM homing.leads WHERE lead_until > homing.now_ms() ORDER BY worker
"""

_IDENTITY = """
SELECT concat_ws(' ', (SELECT min(applied_at) FROM homing.schema_versions),
  (SELECT concat_ws(' ', count(*), max(seq), sum(changes)) FROM homing.rows),
  (SELECT count(*) FROM homing.requests), (SELECT count(*) FROM homing.receipts),
  (SELECT sum(version) FROM homing.registry))
"""

_NOTIFICATIONS = f"""
SELECT {SELECTED}, m.message FROM homing.rows AS r JOIN homing.messages AS m ON m.seq = r.seq
WHERE r.seq > $1 ORDER BY r.seq LIMIT $2
"""  # noqa: S608

_NEWEST = "SELECT max({column}) FROM homing.{table}"

_SET_SEQUENCE = "SELECT setval({sequence}, $1::bigint)"

_SEQUENCES = (
    ("messages", "seq", "'homing.seqs'"),
    ("receipts", "number", "pg_get_serial_sequence('homing.receipts', 'number')"),
    ("outbox", "number", "pg_get_serial_sequence('homing.outbox', 'number')"),
    ("sink_events", "number", "pg_get_serial_sequence('homing.sink_events', 'number')"),
)
"""(table, column, sequence) of the sequences that must continue after the copied numbers."""


class PostgresCopyTarget:
    """A `CopyTarget` that writes to PostgreSQL.

    `open` migrates the schema. Workers cannot open the store until the copy is complete.
    """

    def __init__(self, url: str) -> None:
        self._database = Database(parse_database_url(url), timeout_s=_TIMEOUT_S, limits=_LIMITS)
        self.where = self._database.address.where

    async def open(self) -> None:
        await self._database.open()
        await self._database.do(lambda tx: migrations.check_version(tx, self.where), timed=False)
        await migrate(self._database, self.where)

    async def close(self) -> None:
        await self._database.close()

    async def begin(self, source: str) -> Mapping[str, CopyProgress] | None:
        return await self._database.do(lambda tx: self._begin(tx, source))

    async def take(self, part: CopyPart, records: Sequence[Record], progress: CopyProgress) -> None:
        async def write(tx: PostgresTransaction) -> None:
            if part is NOTIFICATIONS:
                await _write_notifications(tx, records)
            else:
                await _insert(tx, part.name, part.fields, [_converted(part, record) for record in records])
            if await tx.run(_WRITE_PROGRESS, part.name, encode(progress.after), progress.number) != 1:
                raise StoreError(f"Another copy to {self.where} is in progress; stop one of them.")

        await self._database.do(write)

    async def counts(self) -> Mapping[str, int]:
        return await self._database.do(_count)

    async def end(self, source: str) -> None:
        async def finish(tx: PostgresTransaction) -> None:
            for table, column, sequence in _SEQUENCES:
                newest = await tx.one(_NEWEST.format(table=table, column=column))
                if newest is not None:
                    await tx.one(_SET_SEQUENCE.format(sequence=sequence), newest)
            await tx.run(_END, source)
            await tx.run("DELETE FROM homing.copied_parts")
            await tx.script("ANALYZE homing.messages, homing.live, homing.settled, homing.attempts")

        await self._database.do(finish)

    async def _begin(self, tx: PostgresTransaction, source: str) -> Mapping[str, CopyProgress] | None:
        known = dict(cast("Sequence[tuple[str, bool]]", await tx.rows(_COPIES)))
        if known.get(source):
            return None
        if known and source not in known and not all(known.values()):
            raise StoreError(
                f"{self.where} holds an incomplete copy of another source, or the source has changed since "
                "that copy began. Stop all workers and senders, empty the target "
                f"(DROP SCHEMA {tx.schema} CASCADE) and copy again."
            )
        if source in known:
            return {part: _progress(after, number) for part, after, number in await tx.rows(_PROGRESS)}
        await self._refuse_other_data(tx)
        await tx.run(_BEGIN, source)
        return {}

    async def _refuse_other_data(self, tx: PostgresTransaction) -> None:
        workers = [worker for (worker,) in await tx.rows(_WORKERS)]
        if workers:
            raise StoreError(f"{self.where} is in use by {workers[0]}. Stop its workers and copy again.")
        await tx.run("DELETE FROM homing.sinks")  # those of the process that opened the empty store
        for table in ("messages", "ledger", *(_TABLES.get(part.name, part.name) for part in COPY_PARTS)):
            if await tx.one(f"SELECT EXISTS (SELECT 1 FROM homing.{table})"):  # noqa: S608
                raise StoreError(
                    f"{self.where} already holds data ({table}). A copy needs an empty store; name another "
                    "database or another schema (?schema=NAME)."
                )


class PostgresCopySource:
    """A `CopySource` that reads a PostgreSQL database. It writes nothing, but folds the ledger first."""

    def __init__(self, url: str) -> None:
        self._database = Database(parse_database_url(url), timeout_s=_TIMEOUT_S, limits=_LIMITS)
        self.where = self._database.address.where

    async def open(self) -> None:
        await self._database.open()
        try:
            await self._database.do(self._check, timed=False)
            while await self._database.do(fold_ledger):
                pass
        except BaseException:
            await self._database.close()
            raise

    async def close(self) -> None:
        await self._database.close()

    async def identity(self) -> str:
        return str(await self._database.do(lambda tx: tx.one(_IDENTITY)))

    async def active_workers(self) -> tuple[str, ...]:
        found = await self._database.do(lambda tx: tx.rows(_ACTIVE_WORKERS))
        return tuple(worker for (worker,) in found)

    async def counts(self) -> Mapping[str, int]:
        return await self._database.do(_count)

    async def page(self, part: CopyPart, after: Key | None, limit: int) -> Sequence[Record]:
        if part is NOTIFICATIONS:
            first = after[0] if after else 0
            found = await self._database.do(lambda tx: tx.rows(_NOTIFICATIONS, first, limit))
            messages = [record[-1] for record in found]
            return [
                (seq, row, message) for (seq, row), message in zip(rows_from(found), messages, strict=True)
            ]
        sql, parameters = _page_query(part, after), (*(after or ()), limit)
        records = await self._database.do(lambda tx: tx.rows(sql, *parameters))
        return [tuple(map(_plain, record)) for record in records]

    async def _check(self, tx: PostgresTransaction) -> None:
        await migrations.check_version(tx, self.where)
        await migrations.check_copy_complete(tx, self.where)
        version, newest = await migrations.read_schema_version(tx), migrations.MIGRATIONS[-1].version
        if version != newest:
            raise SchemaError(
                f"{self.where} has schema version {version}, but this version of Homing needs {newest}. "
                "Run `homing db migrate` on it first, or upgrade Homing if the schema is newer."
            )


def _page_query(part: CopyPart, after: Key | None) -> str:
    places = ", ".join(f"${number}" for number in range(1, len(part.key) + 1))
    beyond, key = f"WHERE ({', '.join(part.key)}) > ({places})" if after else "", ", ".join(part.key)
    limit = len(after or ()) + 1
    return f"SELECT {', '.join(part.fields)} FROM homing.{part.name} {beyond} ORDER BY {key} LIMIT ${limit}"  # noqa: S608


def _plain(value: Any) -> Any:
    """Returns a value as the SQLite store has it: ids as text, and arrays as JSON."""
    if isinstance(value, UUID):
        return str(value)
    return encode([str(one) for one in value]) if isinstance(value, list) else value


async def _count(tx: PostgresTransaction) -> dict[str, int]:
    """Returns the number of records per part name."""
    tables = {part.name: _TABLES.get(part.name, part.name) for part in COPY_PARTS}
    return {
        name: await tx.one(f"SELECT count(*) FROM homing.{table}")  # noqa: S608
        for name, table in tables.items()
    }


async def _write_notifications(tx: PostgresTransaction, records: Sequence[Record]) -> None:
    """Writes notifications to `messages`, and their states to `live` or `settled`."""
    queues = await tx.queues.find(tx, {queue_of(row) for _, row, _ in records})
    messages: list[Record] = []
    live: list[Record] = []
    settled: list[Record] = []
    for seq, row, message in records:
        if not is_id(row.id):
            raise StoreError(f"The notification {row.id} cannot be copied; PostgreSQL needs UUIDs as ids.")
        messages.append((seq, *map(_clean, message_columns(row, message))))
        state = tuple(map(_clean, state_columns(seq, row, queues[queue_of(row)])))
        (live if row.status in LIVE else settled).append(state)
    await _insert(tx, "messages", ("seq", *MESSAGE), messages)
    await _insert(tx, "live", tuple(STATE), live)
    await _insert(tx, "settled", tuple(STATE), settled)


async def _insert(tx: PostgresTransaction, table: str, fields: Sequence[str], rows: Sequence[Record]) -> None:
    connection = cast(Any, tx.connection)
    if rows:
        await connection.copy_records_to_table(
            table, schema_name=tx.schema, columns=list(fields), records=rows
        )


def _converted(part: CopyPart, record: Record) -> list[Any]:
    values: dict[str, Any] = dict(zip(part.fields, map(_clean, record), strict=True))
    if "ids" in values:
        values["ids"] = list(decode_ids(values["ids"]))
    if "durable" in values:
        values["durable"] = bool(values["durable"])
    for name in _UUIDS.get(part.name, ()):
        if values[name] is not None and not is_id(values[name]):
            values[name] = None
    return list(values.values())


def _clean(value: Column) -> Column:
    return clean(value) if isinstance(value, str) else value


def _progress(after: str, number: int) -> CopyProgress:
    return CopyProgress(_decode_key(after), number)
