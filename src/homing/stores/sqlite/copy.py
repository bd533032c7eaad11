"""An SQLite file as the source of a copy, read in one snapshot on a separate connection."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from homing.core.errors import SchemaError, StoreUnavailable
from homing.stores.common.change_effects import MINUTE_KEY, MINUTE_SUMS
from homing.stores.common.codec import decode_rows
from homing.stores.common.copy import COPY_PARTS, NOTIFICATIONS, CopyPart, Key, Record
from homing.stores.sqlite.change_recorder import ALL_MINUTES
from homing.stores.sqlite.connection import connect, translate_error
from homing.stores.sqlite.migrations import MIGRATIONS, read_schema_version
from homing.stores.sqlite.statements import json_row

R = TypeVar("R")


_BUSY_TIMEOUT_MS = 5000

_NOTIFICATIONS = f"""
SELECT json_array({json_row("n")}), m.message
FROM homing_notifications AS n CROSS JOIN homing_messages AS m ON m.seq = n.seq
WHERE n.seq > ? ORDER BY n.seq LIMIT ?
"""  # noqa: S608

_ACTIVE_WORKERS = """
SELECT worker FROM homing_notifications INDEXED BY homing_lease WHERE lease_until > ?1
UNION SELECT worker FROM homing_leads WHERE lead_until > ?1
"""

_IDENTITY = """
SELECT (SELECT min(applied_at) FROM homing_schema) || ' ' || count(*) || ' ' || coalesce(max(seq), 0)
  || ' ' || coalesce(sum(changes), 0) || ' ' || (SELECT count(*) FROM homing_requests)
  || ' ' || (SELECT count(*) FROM homing_receipts)
  || ' ' || (SELECT coalesce(sum(version), 0) FROM homing_registry)
FROM homing_notifications
"""


class SqliteCopySource:
    """A `CopySource` that reads an SQLite file. It writes nothing to the file."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self.where = str(path)
        self._connection: sqlite3.Connection | None = None

    async def open(self) -> None:
        await self._do(self._open)

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await asyncio.to_thread(connection.close)

    async def identity(self) -> str:
        return str((await self._all(_IDENTITY))[0][0])

    async def active_workers(self) -> tuple[str, ...]:
        now = time.time_ns() // 1_000_000
        return tuple(sorted(worker for (worker,) in await self._all(_ACTIVE_WORKERS, now)))

    async def counts(self) -> Mapping[str, int]:
        return {
            part.name: (await self._all(f"SELECT count(*) FROM {_source(part)}"))[0][0]  # noqa: S608
            for part in COPY_PARTS
        }

    async def page(self, part: CopyPart, after: Key | None, limit: int) -> Sequence[Record]:
        if part is NOTIFICATIONS:
            found = await self._all(_NOTIFICATIONS, after[0] if after else 0, limit)
            return [(*decode_rows(row)[0], message) for row, message in found]
        key = ", ".join(part.key)
        beyond = f"WHERE ({key}) > ({', '.join('?' * len(part.key))})" if after else ""
        sql = f"SELECT {', '.join(part.fields)} FROM {_source(part)} {beyond} ORDER BY {key} LIMIT ?"  # noqa: S608
        return await self._all(sql, *(after or ()), limit)

    def _open(self) -> None:
        if not self._path.is_file():
            raise StoreUnavailable(f"{self._path} does not exist; name an existing file to copy from.")
        self._connection = connect(self._path, _BUSY_TIMEOUT_MS)
        version, newest = read_schema_version(self._connection.cursor()), MIGRATIONS[-1].version
        if version != newest:
            raise SchemaError(
                f"{self._path} has schema version {version}, but this version of Homing needs {newest}. "
                f"Run `homing db migrate --store {self._path}` first, or upgrade Homing if the file is newer."
            )
        self._connection.execute("BEGIN")  # the first read fixes the snapshot for all later reads
        for statement in _UNITE_MINUTES:
            self._connection.execute(statement)

    async def _all(self, sql: str, *parameters: Any) -> list[Any]:
        connection = self._connection
        assert connection is not None, "open() was not called"
        return await self._do(lambda: connection.execute(sql, parameters).fetchall())

    async def _do(self, action: Callable[[], R]) -> R:
        try:
            return await asyncio.to_thread(action)
        except sqlite3.Error as error:
            raise translate_error(error, self._path) from error


_UNITE_MINUTES = (
    f"""
CREATE TEMP TABLE homing_minutes AS
SELECT {", ".join((*MINUTE_KEY, *(f"sum({name}) AS {name}" for name in MINUTE_SUMS)))}
FROM {ALL_MINUTES.format(after="0")} GROUP BY {", ".join(MINUTE_KEY)}""",  # noqa: S608
    f"CREATE UNIQUE INDEX temp.homing_minutes_key ON homing_minutes ({', '.join(MINUTE_KEY)})",
)
"""Unite the sums of minutes from both of their places in a temporary table, which is read page by page."""


def _source(part: CopyPart) -> str:
    """Returns the table with the records of a part."""
    return "homing_minutes" if part.name == "minute_roll_ups" else f"homing_{part.name}"
