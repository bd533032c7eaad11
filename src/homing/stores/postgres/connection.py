"""The connection pool, and the transactions that calls run in."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast
from weakref import WeakSet

import asyncpg
from asyncpg import exceptions

from homing.core.errors import StoreBusy, StoreError
from homing.stores.common.clock_guard import ClockGuard, StoreTime, steady_clock_ms
from homing.stores.common.sinks import NO_SINKS, SinkBook, read_sink_book
from homing.stores.postgres import clock
from homing.stores.postgres.address import DatabaseAddress, Host, in_schema
from homing.stores.postgres.clock import ClockUnresolvedError, TransactionClock
from homing.stores.postgres.errors import (
    RETRYABLE_ERRORS,
    is_connection_lost,
    is_queue_gone,
    is_statement_lost,
    translate_connect_error,
    translate_error,
)
from homing.stores.postgres.hosts import HostConnection, Hosts, Origin
from homing.stores.postgres.queues import QueueNumbers
from homing.stores.postgres.server_history import STARTED_AT, HistoryChangedError, ServerHistory
from homing.stores.postgres.session_settings import build_session_settings
from homing.stores.postgres.statements import PostgresTransaction
from homing.stores.postgres.transaction_limits import DEFAULT_LIMITS, TransactionLimits

log = logging.getLogger("homing.postgres")

R = TypeVar("R")

_MAX_TRIES = 6
"""Maximum number of tries after a deadlock or serialization failure, or if pooled connections are dead."""

_BETWEEN_TRIES_S = 0.25
"""Time for which others can go on before a brief action is tried again."""

_MAX_READY, _IDLE_S = 4, 300
"""Limits for connections kept ready outside the pool: their number, and their idle time in seconds.

An idle connection may have been dropped silently by a firewall.
"""

_SLOW_S, _WATCH_INTERVAL_S = 2.0, 0.5
"""After how many seconds a transaction is slow, so that its host is checked, and how often this is looked at.
"""

_CLOSE_S = 5.0
"""Maximum time to close connections without transactions, in seconds."""

_READ_ONLY_PAUSE_S = 1.0
"""Connections to a read-only server are replaced at most this often, in seconds."""

_OPEN_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, exceptions.InternalClientError, OSError)

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

# COPY needs no prepared statement, so this works through every pooler.
_SERVER_PID = "SELECT pg_backend_pid()"

# The driver looks up array types once per connection. Using them here makes it do so in advance.
_TYPES = "SELECT $1::bigint[], $2::integer[], $3::boolean[], $4::text[], $5::uuid[]"

_CACHED_STATEMENTS = 200
"""Maximum number of prepared statements per connection, unless the URL sets it."""

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


class _Connection(HostConnection):
    """A connection that is not reset when it returns to the pool, because its settings never change."""

    is_direct = False
    """True if the connection goes directly to the server. Behind a pooler, other clients use the same server
    process."""
    begin_writing = begin_reading = ""
    """Statements that begin a transaction. Behind a pooler, they also make all settings."""

    has_statement_cache = False
    """True if the connection keeps prepared statements."""

    generation = 0
    """How often the connections of the pool were expired before this one was opened."""

    def get_reset_query(self) -> str:
        return ""


async def _read_server_pid(connection: Any) -> int:
    """Returns the id of the server process that runs the connection's statements."""
    copied = bytearray()

    async def receive(data: bytes) -> None:
        copied.extend(data)

    await connection.copy_from_query(_SERVER_PID, output=receive)
    return int(copied)


async def _prepare(connection: Any, limits: TransactionLimits) -> None:
    """Makes the driver look up types and, on a direct connection, makes the session's settings.

    The driver changes a setting for its lookup, which is taken back behind a pooler.
    """
    settings = build_session_settings(limits, connection.get_server_version().major)
    await connection.execute(settings.for_session if connection.is_direct else "BEGIN")
    await connection.fetch(_TYPES, [], [], [], [], [])
    if not connection.is_direct:
        await connection.execute("ROLLBACK")
    begin = () if connection.is_direct else (settings.for_transaction,)
    connection.begin_writing = "; ".join((_WRITING, *begin))
    connection.begin_reading = "; ".join((_READING, *begin, *settings.for_reading))


class _Use(NamedTuple):
    """The use of a connection by one call."""

    began: float
    """Monotonic time at which the call got the connection, in seconds."""
    origin: Origin
    may_take_long: bool
    """True if the connection is kept even if its host does not answer."""


class Database:
    """The connection pool. Each call is a transaction, repeated after a deadlock or a similar conflict."""

    def __init__(
        self,
        address: DatabaseAddress,
        *,
        timeout_s: float,
        steady_clock: Callable[[], int] = steady_clock_ms,
        limits: TransactionLimits = DEFAULT_LIMITS,
    ) -> None:
        self.address = address
        self.limits = limits
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
        self.is_pooled = False
        """True once a connection was found to go through a pooler. All later connections are then assumed to
        do so.
        """
        self.hosts = Hosts(address)
        self._opened: WeakSet[_Connection] = WeakSet()
        """All connections of the pool, including those that were closed a moment ago."""
        self._in_use: dict[Any, _Use] = {}
        self._finishing: set[asyncio.Task[None]] = set()
        """Tasks that end transactions and give back connections. They outlive a caller that is cancelled."""
        self._watching: asyncio.Task[None] | None = None
        self._expired = asyncio.Event()
        """Set when the connections that were open until now are expired, and then replaced by a new event."""
        self._generation = 0
        """How often the connections were expired."""

    async def open(self) -> None:
        """Creates the pool and its first connection. Does nothing if the pool is open."""
        if self._pool is not None:
            return
        self._expired = asyncio.Event()  # the one of an earlier event loop cannot be waited for
        try:
            self._pool = await asyncpg.create_pool(
                self.address.url,
                min_size=0,  # otherwise the pool logs errors while the server is unreachable
                max_size=self.address.pool_size,
                command_timeout=self._timeout_s,
                max_cached_statement_lifetime=0,
                connection_class=_Connection,
                connect=cast(Any, self._connect),
                server_settings={"application_name": "homing"},
            )
            async with self._pool.acquire(timeout=self._timeout_s):
                pass
        except BaseException as error:
            pool, self._pool = self._pool, None
            if pool is not None:
                pool.terminate()
            if isinstance(error, ValueError):
                raise StoreError(f"{self.address.where}: the URL is not valid.") from None
            if isinstance(error, _OPEN_ERRORS):
                raise translate_connect_error(error, self.address.where) from None
            raise
        self._watching = asyncio.create_task(self._watch(), name="homing-postgres-watch")

    async def close(self) -> None:
        """Waits for the transactions in progress and closes all connections."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        ready, self._ready = self._ready, []
        try:
            async with asyncio.timeout(self._timeout_s if self._in_use else _CLOSE_S):
                for connection, _ in ready:
                    await pool.release(connection)
                await pool.close()
        except (TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            pool.terminate()
        finally:
            if self._watching is not None:
                self._watching.cancel()
                await asyncio.gather(self._watching, return_exceptions=True)
                self._watching = None

    @property
    def cached_statements(self) -> int:
        """Number of prepared statements that a new connection may keep. 0 behind a pooler.

        Behind a pooler, the next transaction may run in another server session. That session does not have
        the statement, or it has one of the same name that belongs to another client.
        """
        if self.address.cached_statements is not None:
            return self.address.cached_statements
        return 0 if self.is_pooled else _CACHED_STATEMENTS

    async def _set_up(self, connection: Any, cached_statements: int) -> None:
        """Detects a pooler and prepares the connection, unless it has to be made again without a cache.

        A pooler gives its clients ids of its own instead of the id of a server process.
        """
        if await _read_server_pid(connection) != connection.get_server_pid():
            self._note_pooler()
        connection.has_statement_cache = cached_statements > 0
        if cached_statements <= self.cached_statements:
            connection.is_direct = not self.is_pooled
            await _prepare(connection, self.limits)

    def _note_pooler(self) -> None:
        if not self.is_pooled:
            self.is_pooled = True
            log.info(
                "%s: connections go through a pooler. Settings are made in each transaction, and "
                "%d prepared statements are kept per connection",
                self.address.where,
                self.cached_statements,
            )

    async def _may_succeed_again(self, error: Exception, *, has_cache: bool) -> bool:
        """Returns True if another try may succeed after an error on a connection.

        If a pooler has lost a prepared statement, later connections do without them. That does not help if
        the connection had no cache, or the URL demands one.
        """
        if not is_statement_lost(error):
            return isinstance(error, RETRYABLE_ERRORS)
        if not has_cache or self.address.cached_statements is not None:
            return False
        if not self.is_pooled:
            self._note_pooler()
            await self._expire()
        return True

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
        may_take_long: bool = False,
    ) -> R:
        """Runs the action in a new transaction, and again after a deadlock or serialization failure.

        Also runs it again, once, if the server has ended the transaction because this process was suspended,
        and, without what the process has cached, if the database may have gone back to an earlier state.

        If `timed`, the time is read first, which needs an existing schema. `sinks` is True if the action
        writes events. `beside` names a lock to hold in shared mode (see `lock_exclusively`). If `patient` is
        False, the transaction waits at most 250 ms for a lock and then raises `StoreBusy`. `numbers` is the
        number of seqs to reserve for new rows. `may_take_long` is True if a statement may take minutes, so
        that its connection is not given up even if the server is too busy to answer a new one.
        """
        for tried in range(1, _MAX_TRIES + 1):
            connection, asked_ms, answered_ms = await self._begin(
                read_only=read_only, patient=patient, may_take_long=may_take_long
            )
            is_last, commits, has_cache = tried == _MAX_TRIES, False, connection.has_statement_cache
            tx_clock = TransactionClock(self.clock_guard, asked_ms, answered_ms, is_last_try=is_last)
            try:
                now, seqs, book = await self._read_time(
                    connection, timed, sinks, beside, numbers, checks_history=not read_only
                )
                tx = PostgresTransaction(
                    connection, now, self.address.schema, self.queues, book, seqs, tx_clock
                )
                if now:
                    tx.set_time(now)
                result = await action(tx)
                if self._was_silent(answered_ms):
                    await connection.execute("SELECT 1")  # fails if there is nothing to commit any more
                commits = True
                await connection.execute("COMMIT")
            except Exception as error:
                use = self._in_use.get(connection)
                may_succeed = await self._may_succeed_again(error, has_cache=has_cache)
                if tried == 1 and not commits:  # once only, because a transaction may really take too long
                    may_succeed = may_succeed or self._has_ended(error, answered_ms)
                await self._roll_back(connection)
                may_succeed = await self._leave_after(error, use, read_only) or may_succeed
                may_succeed = await self._remove_cause(error) or may_succeed
                if is_last or not may_succeed:
                    raise _translate_action_error(error, self.address.where) from error
                await asyncio.sleep(0.002 * 2**tried)
            except BaseException:
                self._roll_back_later(connection)
                raise
            else:
                for queue, number in tx.made.items():
                    self.queues.learn(number, queue)
                await self._keep_ready(connection)
                return result
        raise AssertionError("unreachable")

    async def do_briefly(self, action: Action[R], *, sinks: bool = False) -> R:
        """Runs an action that makes others wait while it waits for a lock itself.

        It waits for a moment only, lets the others go on, and tries again. Raises `StoreBusy` if another
        transaction holds the lock for longer than a suspended process can.
        """
        give_up_ms = self.steady_clock() + self.limits.lock_ms
        while True:
            try:
                return await self.do(action, sinks=sinks, patient=False)
            except StoreBusy:
                if self.steady_clock() >= give_up_ms:
                    raise
            await asyncio.sleep(_BETWEEN_TRIES_S)

    async def look(self, action: Action[R]) -> R:
        """Runs an action that is a single reading statement. Its `tx.now` is 0.

        Omits BEGIN and COMMIT, except behind a pooler or when the connection is lost and the action is
        repeated.
        """
        connection, has_cache = None, False
        try:
            connection = await self._acquire()
            use, has_cache = self._note_use(connection), connection.has_statement_cache
            if connection.is_direct:
                found = await action(PostgresTransaction(connection, 0, self.address.schema, self.queues))
                await self._keep_ready(connection)
                return found
            await self._release(connection)
        except Exception as error:
            may_succeed = await self._may_succeed_again(error, has_cache=has_cache)
            if connection is not None:
                await self._release(connection)
                if isinstance(error, TimeoutError):
                    await self._leave(use)
            is_lost = is_connection_lost(error) and not isinstance(error, TimeoutError)
            if not may_succeed and not is_lost:
                translate = translate_connect_error if connection is None else translate_error
                raise translate(error, self.address.where) from error
        except BaseException:
            if connection is not None:
                self._finish_later(self._release(connection))
            raise
        return await self.do(action, read_only=True, timed=False)

    async def read_history(self) -> None:
        """Reads which server this process works with. Drops all caches if it is another one than before."""
        connection, _, _ = await self._begin(read_only=True)
        try:
            changed = await self.history.read(connection)
        except Exception as error:
            await self._roll_back(connection)
            raise translate_error(error, self.address.where) from error
        except BaseException:
            self._roll_back_later(connection)
            raise
        await self._roll_back(connection)
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
        connection, asked_ms, answered_ms = await self._begin()
        has_cache = connection.has_statement_cache
        try:
            found = await clock.resolve(
                connection, self.address.schema, self.clock_guard, asked_ms, answered_ms
            )
            await connection.execute("COMMIT")
        except Exception as error:
            may_succeed = await self._may_succeed_again(error, has_cache=has_cache)
            await self._roll_back(connection)
            if may_succeed and is_statement_lost(error):
                return await self.resolve_clock()
            raise translate_error(error, self.address.where) from error
        except BaseException:
            self._roll_back_later(connection)
            raise
        await self._keep_ready(connection)
        return None if found is None else found.time

    async def _read_time(
        self,
        connection: Any,
        timed: bool,
        sinks: bool,
        beside: str | None,
        numbers: int,
        *,
        checks_history: bool,
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
        if checks_history:  # a pooler may send transactions that only read to another server
            self.history.check(started_at)
        return now, seqs or (), read_sink_book(book[0]) if book else NO_SINKS

    async def _remove_cause(self, error: Exception) -> bool:
        """Reads what a transaction did not know. Returns True if it is likely to succeed then."""
        match error:
            case ClockUnresolvedError():
                await self.resolve_clock()
            case HistoryChangedError():
                await self.read_history()
            case _ if is_queue_gone(error):
                await self.note_loss()
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

    async def _connect(self, url: str, **options: Any) -> _Connection:
        """Opens a connection for the pool. Connects again without a statement cache if it finds a pooler."""
        while True:
            size = self.cached_statements
            set_up = partial(self._set_up, cached_statements=size)
            try:
                connection: _Connection = await self.hosts.connect(
                    url, set_up=set_up, statement_cache_size=size, **options
                )
            except Exception as error:
                if not await self._may_succeed_again(error, has_cache=size > 0):
                    raise
                continue
            if size <= self.cached_statements:
                connection.generation = self._generation
                self._opened.add(connection)
                return connection
            await connection.close()

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

    def _note_use(self, connection: Any, may_take_long: bool = False) -> _Use:
        use = _Use(time.monotonic(), connection.origin, may_take_long)
        self._in_use[connection] = use
        return use

    async def _begin(
        self, *, read_only: bool = False, patient: bool = True, may_take_long: bool = False
    ) -> tuple[Any, int, int]:
        """Begins a transaction. Returns its connection, and the monotonic times before and after BEGIN.

        A dead connection is replaced by the next one.
        """
        for tried in range(1, _MAX_TRIES + 1):
            connection = use = None
            try:
                connection = await self._acquire()
                use = self._note_use(connection, may_take_long)
                begin = connection.begin_reading if read_only else connection.begin_writing
                asked_ms = self.steady_clock()
                await connection.execute(begin if patient else f"{begin}; {_SHORT_LOCK_TIMEOUT}")
                return connection, asked_ms, self.steady_clock()
            except BaseException as error:
                if not isinstance(error, Exception):
                    if connection is not None:
                        self._roll_back_later(connection)
                    raise
                if connection is None:  # an immediate retry would not help, and open connections may work
                    raise translate_connect_error(error, self.address.where) from error
                await self._roll_back(connection)  # the server may have begun the transaction
                if isinstance(error, TimeoutError):
                    await self._leave(use)
                elif is_connection_lost(error):
                    await self._expire()
                    if tried < _MAX_TRIES:
                        continue
                raise translate_connect_error(error, self.address.where) from error
        raise AssertionError("unreachable")

    def _has_ended(self, error: Exception, begun_ms: int) -> bool:
        """Returns True if the server has ended the transaction because it did not hear from this process.

        The process was suspended, or its event loop was blocked. Nothing was committed.
        """
        is_lost = is_connection_lost(error) and not isinstance(error, TimeoutError)
        return is_lost and self._was_silent(begun_ms)

    def _was_silent(self, begun_ms: int) -> bool:
        """Returns True if the transaction is so old that the server may have ended it."""
        return self.steady_clock() - begun_ms >= self.limits.silence_ms

    async def _expire(self) -> None:
        """Makes the pool replace each connection at its next use, because one of them was found dead.

        Waits for nothing, so a caller that is cancelled meanwhile does not keep its connection.
        """
        if self._pool is None:
            return
        await self._pool.expire_connections()
        self._generation += 1
        self._expired.set()
        self._expired = asyncio.Event()
        ready, self._ready = self._ready, []
        for connection, _ in ready:
            _terminate(connection)  # closing it properly would have to wait for a server that may hang
            self._finish_later(self._release(connection))

    async def until_expired(self) -> None:
        """Waits until the connections that are open now are expired, because their server may be gone."""
        await self._expired.wait()

    async def _leave(self, use: _Use | None) -> None:
        """Makes the next calls connect again, and to another host if there is one."""
        if use is not None:
            self.hosts.note_failure(use.origin.host)
        await self._expire()

    async def _leave_after(self, error: Exception, use: _Use | None, read_only: bool) -> bool:
        """Leaves the server if an error of a transaction gives a reason to.

        Returns True if the transaction can be tried again elsewhere. The server was fenced or has become a
        standby then, so it has changed nothing. A new connection is not replaced yet: if there is no other
        server, each call would open a connection to the same one.
        """
        if isinstance(error, TimeoutError):
            await self._leave(use)
            return False
        if read_only or use is None or not isinstance(error, exceptions.ReadOnlySQLTransactionError):
            return False
        if use.began - use.origin.connected_at < _READ_ONLY_PAUSE_S:
            return False
        log.warning("%s accepts no writes any more; connecting again", use.origin.host or self.address.where)
        await self._leave(use)
        return True

    async def _watch(self) -> None:
        """Gives up the connections to a host that does not answer, until cancelled.

        A host is checked on a new connection if a transaction takes longer than `_SLOW_S`, because a
        statement may simply take long. Its own timeout would not help, because that one is meant for the
        slowest statement. A host that answers on any connection meanwhile is kept: it may only have no room
        for another connection.
        """
        pause_s = _WATCH_INTERVAL_S
        while True:
            await asyncio.sleep(pause_s)
            pause_s = _WATCH_INTERVAL_S
            slow_until = time.monotonic() - _SLOW_S
            for host in {use.origin.host for use in self._in_use.values() if use.began < slow_until}:
                pause_s = _SLOW_S
                try:
                    began = time.monotonic()
                    answers = await self.hosts.answers(host, is_pooler=self.is_pooled)
                    if not answers and not self._was_answered(host, began):
                        await self._give_up(host)
                except Exception:
                    log.exception("checking %s failed unexpectedly; trying again", host or self.address.where)

    def _was_answered(self, host: Host | None, since: float) -> bool:
        """Returns True if any connection to the host got a result after the monotonic time `since`."""
        return any(one.origin.host == host and one.answered_at > since for one in self._opened)

    async def _give_up(self, host: Host | None) -> None:
        """Closes the connections to a host that does not answer, so that their calls fail at once."""
        log.warning("%s does not answer; its connections are closed", host or self.address.where)
        self.hosts.note_failure(host)
        kept = {use.origin for use in self._in_use.values() if use.may_take_long}
        for connection in list(self._opened):
            if connection.origin.host == host and connection.origin not in kept:
                _terminate(connection)
        await self._expire()

    async def _roll_back(self, connection: Any) -> None:
        """Ends the transaction of a connection and releases it, even if the caller is cancelled meanwhile."""
        await asyncio.shield(self._roll_back_later(connection))

    def _roll_back_later(self, connection: Any) -> asyncio.Task[None]:
        """Does the same without making a cancelled caller wait for a server that may hang."""
        return self._finish_later(self._end(connection))

    async def _end(self, connection: Any) -> None:
        """Ends the transaction of a connection and releases it. Closes it if that is not possible."""
        try:
            if _is_open(connection):
                await connection.execute("ROLLBACK", timeout=5)
        except BaseException as error:
            _terminate(connection)
            if not isinstance(error, Exception):
                raise
        finally:
            await self._release(connection)

    def _finish_later(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Gives a connection back in a task of its own, which goes on if the caller is cancelled."""
        task = asyncio.create_task(work)
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)
        return task

    async def _keep_ready(self, connection: Any) -> None:
        """Keeps a connection ready for the next call.

        Releases it if a caller waits, if enough are ready, or if it was expired while it was in use.
        """
        enough = self._waiting_for_pool or len(self._ready) >= _MAX_READY
        is_usable = _is_open(connection) and connection.generation == self._generation
        if self._pool is None or enough or not is_usable:
            await self._release(connection)
        else:
            self._in_use.pop(connection, None)
            self._ready.append((connection, time.monotonic()))

    async def _release(self, connection: Any) -> None:
        """Returns a connection to the pool, or terminates the connection if the pool is closed."""
        self._in_use.pop(connection, None)
        if self._pool is None:
            with suppress(Exception):
                connection.terminate()
            return
        # Whatever happens here, the call has its result. For example, the connection may be closed meanwhile.
        with suppress(Exception):
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


def _terminate(connection: Any) -> None:
    """Closes a connection without waiting for the server."""
    with suppress(exceptions.InterfaceError):  # it has left the pool
        connection.terminate()


def _is_open(connection: Any) -> bool:
    """Returns False for a closed connection.

    A connection that broke in use has left the pool, and its methods raise `InterfaceError`.
    """
    try:
        return not connection.is_closed()
    except exceptions.InterfaceError:
        return False
