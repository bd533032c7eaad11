"""Notices that the database's history may have gone back: after a failover, a restore or a restart.

Every transaction that writes and reads the time also reads when its server was started, in one statement. A
promoted standby, a restored backup and a restarted server all have another start time than the server before.
So this is noticed even behind a pooler, where the connection of the client stays the same. The identity also
contains the timeline, which tells a failover from a restart, but some servers do not let a role read it.

Rows that are gone are another sign. It is the only one if the tables were restored within a running server.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from asyncpg import exceptions

STARTED_AT = "(extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint"
"""SQL for the start time of the server, in microseconds since the epoch."""

_TIMELINE = """
SELECT CASE WHEN pg_is_in_recovery() THEN '' ELSE substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END
"""

_READ_STARTED_AT = f"SELECT {STARTED_AT}"

_LOSS_EVERY_S = 60
"""Rows that are gone change the identity at most this often, because each change causes a report."""


class HistoryChangedError(Exception):
    """Raised in a transaction that runs on another server than the one before. It is begun again."""


class ServerHistory:
    """The history that this process last worked with."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started_at: int | None = None
        self._timeline = ""
        self._losses = 0
        self._next_loss_s = float("-inf")
        self._unreported = False
        """True if rows were found to be gone since the last change of the identity."""

    @property
    def identity(self) -> str:
        """Identity of the history, see `Store.history`."""
        if self._unreported and self._clock() >= self._next_loss_s:
            self._next_loss_s = self._clock() + _LOSS_EVERY_S
            self._losses += 1
            self._unreported = False
        return f"{self._started_at or ''}/{self._timeline}/{self._losses}"

    def check(self, started_at: int) -> None:
        """Raises `HistoryChangedError` unless the start time is that of the known server."""
        if not self.is_current(started_at):
            raise HistoryChangedError

    def is_current(self, started_at: int) -> bool:
        """Returns True if the start time is that of the known server."""
        return started_at == self._started_at

    async def read(self, connection: Any) -> bool:
        """Reads the identity of the server, and returns True if it is another one than before.

        The caller has begun a transaction and rolls it back, because reading the timeline may fail.
        """
        started_at: int = await connection.fetchval(_READ_STARTED_AT)
        if self.is_current(started_at):
            return False
        try:
            timeline = await connection.fetchval(_TIMELINE)
        except exceptions.PostgresError:  # the role may not read it, or the server does not have it
            timeline = ""
        self._started_at, self._timeline = started_at, timeline
        return True

    def note_loss(self) -> None:
        """Changes the identity, now or later, because a row that this process has seen is gone."""
        self._unreported = True
