"""The connection pool, and the transactions that calls run in."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import asyncpg
from asyncpg import exceptions

from homing.core.errors import StoreBusy, StoreError
from homing.stores.common.clock_guard import ClockGuard, StoreTime, steady_clock_ms
from homing.stores.common.sinks import NO_SINKS, SinkBook, read_sink_book
from homing.stores.postgres import clock
from homing.stores.postgres.address import DatabaseAddress, in_schema
from homing.stores.postgres.clock import ClockUnresolvedError, TransactionClock
from homing.stores.postgres.errors import (
    RETRYABLE_ERRORS,
    is_connection_lost,
    is_queue_gone,
    translate_connect_error,
    translate_error,
)
from homing.stores.postgres.queues import QueueNumbers
from homing.stores.postgres.server_history import STARTED_AT, HistoryChangedError, ServerHistory
from homing.stores.postgres.statements import PostgresTransaction

R = TypeVar("R")

log = logging.getLogger("homing.store")

_MAX_TRIES = 6
"""Maximum number of tries after a deadlock or serialization failure, or if pooled connections are dead."""

_MAX_READY, _IDLE_S = 4, 300
"""Limits for connections kept ready outside the pool: their number, and their idle time in seconds.

An idle connection may have been dropped silently by a firewall.
"""

# Every statement of the delivery path is written for an index. These settings make the planner use the index
# even before it has statistics of a table that was empty a minute ago. They also make one plan serve every
# batch.
_PLANNER_OPTIONS = {
    **dict.fromkeys(
        ["enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin", "jit"], "off"
    ),
    "plan_cache_mode": "force_generic_plan",
}


def _settings(local: str) -> str:
    calls = (f"set_config('{name}', '{value}', {local})" for name, value in _PLANNER_OPTIONS.items())
    return "SELECT " + ", ".join(calls)


PLANNER_SETTINGS, _SESSION_PLANNING = _settings("true"), _settings("false")
"""Statements that set the planner options, for one transaction and for a whole session."""

_SHORT_LOCK_TIMEOUT = "SET LOCAL lock_timeout = 250"

NOW = f"SELECT homing.now_ms(), {STARTED_AT}, NULL"

SINKS = "SELECT string_agg(events || ' ' || name, chr(10)) FROM homing.sinks"

_NOW_AND_SINKS = f"{NOW}, ({SINKS})"

_NOW_BESIDE = (
    f"{_NOW_AND_SINKS} FROM (SELECT pg_advisory_xact_lock_shared(hashtextextended($1, 0)) OFFSET 0) AS held"
)

_NOW_AND_NUMBERS = (
    f"SELECT homing.now_ms(), {STARTED_AT}, "  # noqa: S608
    f"ARRAY(SELECT nextval('homing.seqs') FROM generate_series(1, $1)), ({SINKS})"
)

# The driver looks up array types once per connection. Using them here makes it do so in advance.
_SERVER_PID = "SELECT pg_backend_pid() FROM (SELECT $1::bigint[], $2::integer[], $3::boolean[]) AS types"

_LOCK_EXCLUSIVELY = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))"

# The sequence must not go back. So only one process at a time sets it, to a value that is far ahead: other
# processes cannot draw that many numbers between the comparison and the call.
_SKIP_SEQS = """
SELECT setval('homing.seqs', $2::bigint) FROM homing.seqs WHERE last_value <= $1::bigint
  AND pg_try_advisory_xact_lock(hashtextextended('homing.seqs', 0))
"""

_SKIPPED_SEQS = 100_000

_WRITING = "BEGIN ISOLATION LEVEL READ COMMITTED"

_READING = f"{_WRITING} READ ONLY"


Action = Callable[[PostgresTransaction], Awaitable[R]]


async def lock_exclusively(tx: PostgresTransaction, lock: str) -> None:
    """Takes a lock exclusively, until the transaction ends.

    Waits for all transactions that hold the lock in shared mode (`beside`). Transactions that request it
    later wait for this one.
    """
    await tx.one(_LOCK_EXCLUSIVELY, f"{tx.schema} {lock}")


class _Connection(asyncpg.Connection):
    """A connection that is not reset when it returns to the pool, because its settings never change."""

    is_direct = False
    """True if the connection goes directly to the server. Behind a pooler, other clients use the same server
    process."""

    def get_reset_query(self) -> str:
        return ""


async def _set_up(connection: Any) -> None:
    """Detects a pooler and prepares a direct connection.

    A pooler reports a server pid that is not the real one.
    """
    if await connection.fetchval(_SERVER_PID, [], [], []) == connection.get_server_pid():
        await connection.execute(_SESSION_PLANNING)
        connection.is_direct = True


class Database:
    """The connection pool. Each call is a transaction, repeated after a deadlock or a similar conflict."""

    def __init__(
        self,
        address: DatabaseAddress,
        *,
        timeout_s: float,
        steady_clock: Callable[[], int] = steady_clock_ms,
    ) -> None:
        self.address = address
        self.queues = QueueNumbers()
        self.history = ServerHistory()
        self.forget: Callable[[], int] = lambda: 0
        """Drops the caches of the store, and returns the highest seq that was in them, or 0."""
        self.clock_guard = ClockGuard()
        self.steady_clock = steady_clock
        self._timeout_s = timeout_s
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None
        self._ready: list[tuple[Any, float]] = []
        """Connections to use next, with the time of their last use.

        They avoid the pool, which starts a task for each acquire and release.
        """
        self._waiting_for_pool = 0
        """Number of callers that wait for a connection from the pool."""

    async def open(self) -> None:
        """Creates the pool and its first connection. Does nothing if the pool is open."""
        if self._pool is not None:
            return
        try:
            self._pool = await asyncpg.create_pool(
                self.address.url,
                min_size=0,  # otherwise the pool logs errors while the server is unreachable
                max_size=self.address.pool_size,
                command_timeout=self._timeout_s,
                timeout=self._timeout_s,
                statement_cache_size=self.address.cached_statements,
                max_cached_statement_lifetime=0,
                connection_class=_Connection,
                init=_set_up,
                server_settings={"application_name": "homing"},
            )
            async with self._pool.acquire(timeout=self._timeout_s):
                pass
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, ValueError) as error:
            self._pool = None
            if isinstance(error, ValueError):
                raise StoreError(f"{self.address.where}: the URL is not valid.") from None
            raise translate_error(error, self.address.where) from None

    async def close(self) -> None:
        """Waits for the transactions in progress and closes all connections."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        ready, self._ready = self._ready, []
        try:
            async with asyncio.timeout(self._timeout_s):
                for connection, _ in ready:
                    await pool.release(connection)
                await pool.close()
        except (TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            pool.terminate()

    async def do(
        self,
        action: Action[R],
        *,
        sinks: bool = False,
        read_only: bool = False,
        timed: bool = True,
        beside: str | None = None,
        patient: bool = True,
        numbers: int = 0,
    ) -> R:
        """Runs the action in a new transaction, and again after a deadlock or serialization failure.

        Also runs it again, without what the process has cached, if the database may have gone back to an
        earlier state. If `timed`, the time is read first, which needs an existing schema. `sinks` is True if
        the action writes events. `beside` names a lock to hold in shared mode (see `lock_exclusively`). If
        `patient` is False, the transaction waits at most 250 ms for a lock and then raises `StoreBusy`.
        `numbers` is the number of seqs to reserve for new rows.
        """
        begin = [_READING if read_only else _WRITING, *([] if patient else [_SHORT_LOCK_TIMEOUT])]
        for tried in range(1, _MAX_TRIES + 1):
            connection, asked_ms, answered_ms = await self._begin(begin)
            is_last = tried == _MAX_TRIES
            tx_clock = TransactionClock(self.clock_guard, asked_ms, answered_ms, is_last_try=is_last)
            try:
                now, seqs, book = await self._read_time(connection, timed, sinks, beside, numbers)
                tx = PostgresTransaction(
                    connection, now, self.address.schema, self.queues, book, seqs, tx_clock
                )
                if now:
                    tx.set_time(now)
                result = await action(tx)
                await connection.execute("COMMIT")
            except Exception as error:
                await self._roll_back(connection)
                if is_last or not await self._prepare_retry(error, tried):
                    raise _translate_action_error(error, self.address.where) from error
            except BaseException:
                await asyncio.shield(self._roll_back(connection))
                raise
            else:
                for queue, number in tx.made.items():
                    self.queues.learn(number, queue)
                await self._keep_ready(connection)
                return result
        raise AssertionError("unreachable")

    async def look(self, action: Action[R]) -> R:
        """Runs an action that is a single reading statement. Its `tx.now` is 0.

        Omits BEGIN and COMMIT, except behind a pooler or when the connection is lost and the action is
        repeated.
        """
        connection = None
        try:
            connection = await self._acquire()
            if connection.is_direct:
                found = await action(PostgresTransaction(connection, 0, self.address.schema, self.queues))
                used, connection = connection, None
                await self._keep_ready(used)
                return found
        except Exception as error:
            if not is_connection_lost(error):
                translate = translate_connect_error if connection is None else translate_error
                raise translate(error, self.address.where) from error
        finally:
            if connection is not None:
                await self._release(connection)
        return await self.do(action, read_only=True, timed=False)

    async def read_history(self) -> None:
        """Reads which server this process works with. Drops all caches if it is another one than before."""
        connection, _, _ = await self._begin([_READING])
        try:
            changed = await self.history.read(connection)
        except Exception as error:
            raise translate_error(error, self.address.where) from error
        finally:
            await asyncio.shield(self._roll_back(connection))
        if changed:
            await self._drop_caches()

    async def note_loss(self) -> None:
        """Drops all caches, because a row that this process has seen is gone."""
        self.history.note_loss()
        await self._drop_caches()

    async def resolve_clock(self) -> StoreTime | None:
        """Reads the record of a suspected step of the clock, and writes it if necessary.

        Returns the time, or None if there is no table for the record yet.
        """
        connection, asked_ms, answered_ms = await self._begin([_WRITING])
        try:
            found = await clock.resolve(
                connection, self.address.schema, self.clock_guard, asked_ms, answered_ms
            )
            await connection.execute("COMMIT")
        except Exception as error:
            await self._roll_back(connection)
            raise translate_error(error, self.address.where) from error
        except BaseException:
            await asyncio.shield(self._roll_back(connection))
            raise
        await self._keep_ready(connection)
        return None if found is None else found.time

    async def _read_time(
        self, connection: Any, timed: bool, sinks: bool, beside: str | None, numbers: int
    ) -> tuple[int, Sequence[int], SinkBook]:
        """Returns the time of the transaction, seqs for new rows, and the sinks. Takes the lock `beside`.

        Reading the sinks also locks them: none is added or removed before the transaction ends.
        """
        sql: str
        parameters: list[Any]
        if beside is not None:
            sql, parameters = _NOW_BESIDE, [f"{self.address.schema} {beside}"]
        elif numbers:
            sql, parameters = _NOW_AND_NUMBERS, [numbers]
        elif sinks:
            sql, parameters = _NOW_AND_SINKS, []
        elif timed:
            sql, parameters = NOW, []
        else:
            return 0, (), NO_SINKS
        now, started_at, seqs, *book = await connection.fetchrow(
            in_schema(sql, self.address.schema), *parameters
        )
        self.history.check(started_at)
        return now, seqs or (), read_sink_book(book[0]) if book else NO_SINKS

    async def _prepare_retry(self, error: Exception, tried: int) -> bool:
        """Returns True if the transaction is likely to succeed now, or after what this method has done."""
        match error:
            case ClockUnresolvedError():
                await self.resolve_clock()
            case HistoryChangedError():
                await self.read_history()
            case _ if is_queue_gone(error):
                await self.note_loss()
            case _ if isinstance(error, RETRYABLE_ERRORS):
                await asyncio.sleep(0.002 * 2**tried)
            case _:
                return False
        return True

    async def _drop_caches(self) -> None:
        """Forgets everything that may be wrong if the database's history has gone back.

        The database may give out the seqs of lost rows again, and an older release, which does not compare
        ids, may still settle them. So the seqs that this process has in its cache are skipped.
        """
        self.queues.clear()
        highest = self.forget()
        if highest:
            try:
                await self.do(lambda tx: tx.rows(_SKIP_SEQS, highest, highest + _SKIPPED_SEQS), timed=False)
            except StoreError as error:
                log.info("the numbers of lost rows cannot be skipped: %s", error)

    async def _acquire(self) -> Any:
        if self._pool is None:
            raise StoreError(f"{self.address.where} is closed; open the store first.")
        while self._ready:
            connection, used_at = self._ready.pop()
            if _is_open(connection):
                if time.monotonic() - used_at < _IDLE_S:
                    return connection
                connection.terminate()
            await self._release(connection)
        self._waiting_for_pool += 1
        try:
            return await self._pool.acquire(timeout=self._timeout_s)
        finally:
            self._waiting_for_pool -= 1

    async def _begin(self, begin: Sequence[str]) -> tuple[Any, int, int]:
        """Begins a transaction. Returns its connection, and the monotonic times before and after BEGIN.

        A dead connection is replaced by the next one.
        """
        for tried in range(1, _MAX_TRIES + 1):
            connection = None
            try:
                connection = await self._acquire()
                statements = begin if connection.is_direct else (*begin, PLANNER_SETTINGS)
                asked_ms = self.steady_clock()
                await connection.execute("; ".join(statements))
                return connection, asked_ms, self.steady_clock()
            except BaseException as error:
                if connection is not None:  # the server may have begun the transaction
                    await asyncio.shield(self._roll_back(connection))
                if not isinstance(error, Exception):
                    raise
                translate = translate_connect_error if connection is None else translate_error
                if not is_connection_lost(error) or isinstance(error, TimeoutError) or tried == _MAX_TRIES:
                    raise translate(error, self.address.where) from error
                await self._expire()
                if connection is None:  # the server is unreachable, so an immediate retry would not help
                    raise translate(error, self.address.where) from error
        raise AssertionError("unreachable")

    async def _expire(self) -> None:
        """Makes the pool replace each connection at its next use, because one of them was found dead."""
        if self._pool is not None:
            await self._pool.expire_connections()
            while self._ready:
                await self._release(self._ready.pop()[0])

    async def _roll_back(self, connection: Any) -> None:
        """Ends the transaction of a connection and releases it. Closes it if that is not possible."""
        try:
            if _is_open(connection):
                await connection.execute("ROLLBACK", timeout=5)
        except (exceptions.PostgresError, exceptions.InterfaceError, OSError, TimeoutError):
            with suppress(exceptions.InterfaceError):
                connection.terminate()
        await self._release(connection)

    async def _keep_ready(self, connection: Any) -> None:
        """Keeps a connection ready for the next call. Releases it if a caller waits or enough are ready."""
        enough = self._waiting_for_pool or len(self._ready) >= _MAX_READY
        if self._pool is None or enough or not _is_open(connection):
            await self._release(connection)
        else:
            self._ready.append((connection, time.monotonic()))

    async def _release(self, connection: Any) -> None:
        """Returns a connection to the pool, or terminates the connection if the pool is closed."""
        if self._pool is None:
            with suppress(Exception):
                connection.terminate()
            return
        with suppress(exceptions.PostgresError, exceptions.InterfaceError, OSError, TimeoutError):
            await self._pool.release(connection, timeout=5)


def _translate_action_error(error: Exception, where: str) -> Exception:
    """Returns the store error of a transaction that was begun as often as possible."""
    match error:
        case ClockUnresolvedError():
            return StoreBusy("The clock of the store was set repeatedly. Try again.")
        case HistoryChangedError():
            return StoreBusy(f"{where} was restarted repeatedly. Try again.")
        case _ if is_queue_gone(error):
            return StoreBusy(f"{where} was restored meanwhile. Nothing was changed; try again.")
        case _:
            return translate_error(error, where)


def _is_open(connection: Any) -> bool:
    """Returns False for a closed connection.

    A connection that broke in use has left the pool, and its methods raise `InterfaceError`.
    """
    try:
        return not connection.is_closed()
    except exceptions.InterfaceError:
        return False
