"""Connections, and the transactions that calls work in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import asyncpg
from asyncpg import exceptions as said

from homing.core.errors import StoreError
from homing.stores.postgres.errors import RACES, lost_connection, translated
from homing.stores.postgres.names import Address, in_schema
from homing.stores.postgres.queues import Queues
from homing.stores.postgres.statements import Tx

R = TypeVar("R")
_TRIES = 6
"""Against deadlocks and the like, and against connections that died while nobody used them."""
_AT_HAND, _IDLE_S = 4, 300
"""Connections at hand, and how long one may lie idle there: a firewall may have dropped it without a word."""
# Every statement on the line is written for an index. Told so, the planner keeps to them also before it has
# statistics of a table that was empty a minute ago, and one plan serves every batch.
_PLANNER = {
    **dict.fromkeys(
        ["enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin", "jit"], "off"
    ),
    "plan_cache_mode": "force_generic_plan",
}


def _settings(local: str) -> str:
    return "SELECT " + ", ".join(f"set_config('{name}', '{to}', {local})" for name, to in _PLANNER.items())


PLANNING, _PLANNING_ALWAYS = _settings("true"), _settings("false")
"""For one transaction, and for a connection that is ours alone."""
_IMPATIENT = "SET LOCAL lock_timeout = 250"
NOW = "SELECT homing.now_ms(), NULL"
_NOW_BESIDE = f"{NOW} FROM (SELECT pg_advisory_xact_lock_shared(hashtextextended($1, 0)) OFFSET 0) AS held"
_NOW_AND_NUMBERS = "SELECT homing.now_ms(), ARRAY(SELECT nextval('homing.seqs') FROM generate_series(1, $1))"
# The driver has to ask the server about types of arrays, once on each connection: better here than later.
_WHO = "SELECT pg_backend_pid() FROM (SELECT $1::bigint[], $2::integer[], $3::boolean[]) AS types"
_ALONE = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))"
_WRITING = "BEGIN ISOLATION LEVEL READ COMMITTED"
_READING = f"{_WRITING} READ ONLY"


Action = Callable[[Tx], Awaitable[R]]


async def alone_with(tx: Tx, lock: str) -> None:
    """Waits until no transaction is under way that does its work `beside` this lock; new ones wait."""
    await tx.one(_ALONE, f"{tx.schema} {lock}")


class _Connection(asyncpg.Connection):
    """What is set on a connection stays, so nothing has to be reset when it goes back to the pool."""

    is_ours = False
    """No pooler lends the server's process to others between our transactions."""

    def get_reset_query(self) -> str:
        return ""


async def _get_ready(connection: Any) -> None:
    """A pooler gives a connection a number of its own; the process behind it has another."""
    if await connection.fetchval(_WHO, [], [], []) == connection.get_server_pid():
        await connection.execute(_PLANNING_ALWAYS)
        connection.is_ours = True


class Database:
    """The pool. Every call is one transaction; those that lost a race are done again."""

    def __init__(self, address: Address, *, timeout_s: float) -> None:
        self.address = address
        self.queues = Queues()
        self._timeout_s = timeout_s
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None
        self._at_hand: list[tuple[Any, float]] = []
        """Connections that were used last, and when: the pool starts a task to take one, and to lend one."""
        self._asking = 0
        """How many wait for the pool to lend them one."""

    async def open(self) -> None:
        """Connects, if that was not done before."""
        if self._pool is not None:
            return
        try:
            self._pool = await asyncpg.create_pool(
                self.address.url,
                min_size=0,  # else the pool complains, loudly, while the server is away
                max_size=self.address.pool_size,
                command_timeout=self._timeout_s,
                timeout=self._timeout_s,
                statement_cache_size=self.address.cached_statements,
                max_cached_statement_lifetime=0,
                connection_class=_Connection,
                init=_get_ready,
                server_settings={"application_name": "homing"},
            )
            async with self._pool.acquire(timeout=self._timeout_s):
                pass
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, ValueError) as error:
            self._pool = None
            if isinstance(error, ValueError):
                raise StoreError(f"{self.address.where}: the URL cannot be read.") from None
            raise translated(error, self.address.where) from None

    async def close(self) -> None:
        """Lets what is under way finish."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        at_hand, self._at_hand = self._at_hand, []
        try:
            async with asyncio.timeout(self._timeout_s):
                for connection, _ in at_hand:
                    await pool.release(connection)
                await pool.close()
        except (TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            pool.terminate()

    async def do(
        self,
        action: Action[R],
        subscribed: Collection[str] = (),
        *,
        read_only: bool = False,
        timed: bool = True,
        beside: str | None = None,
        patient: bool = True,
        numbers: int = 0,
    ) -> R:
        """Runs the action in a transaction of its own; again, if it lost a race against another.

        `timed` asks for the time, which only a schema that is there can tell. `beside` names a lock that
        calls of one kind share, and that another kind takes alone (see `alone_with`). Who is not `patient`
        waits for another's locks for a moment only, and is told `StoreBusy`. `numbers` is how many new rows
        there may be.
        """
        begin = [_READING if read_only else _WRITING, *([] if patient else [_IMPATIENT])]
        for tried in range(1, _TRIES + 1):
            connection = await self._begun(begin)
            try:
                now, seqs = await self._asked(connection, timed, beside, numbers)
                tx = Tx(connection, now, self.address.schema, self.queues, subscribed, seqs)
                result = await action(tx)
                await connection.execute("COMMIT")
            except RACES as error:
                await self._give_up(connection)
                if tried == _TRIES:
                    raise translated(error, self.address.where) from error
                await asyncio.sleep(0.002 * 2**tried)
            except Exception as error:
                await self._give_up(connection)
                raise translated(error, self.address.where) from error
            except BaseException:
                await asyncio.shield(self._give_up(connection))
                raise
            else:
                for queue, number in tx.made.items():
                    self.queues.learn(number, queue)
                await self._released(connection)
                return result
        raise AssertionError("unreachable")

    async def look(self, action: Action[R]) -> R:
        """A single statement that only reads, and needs no time, is a transaction by itself."""
        connection = None
        try:
            connection = await self._acquired()
            if connection.is_ours:
                found = await action(Tx(connection, 0, self.address.schema, self.queues))
                served, connection = connection, None
                await self._released(served)
                return found
        except Exception as error:
            if not lost_connection(error):
                raise translated(error, self.address.where) from error
        finally:
            if connection is not None:
                await self._give_back(connection)
        return await self.do(action, read_only=True, timed=False)

    async def _asked(
        self, connection: Any, timed: bool, beside: str | None, numbers: int
    ) -> tuple[int, Sequence[int]]:
        """The time of the transaction, and numbers for new rows."""
        words: str
        parameters: list[Any]
        if beside is not None:
            words, parameters = _NOW_BESIDE, [f"{self.address.schema} {beside}"]
        elif numbers:
            words, parameters = _NOW_AND_NUMBERS, [numbers]
        elif timed:
            words, parameters = NOW, []
        else:
            return 0, ()
        now, seqs = await connection.fetchrow(in_schema(words, self.address.schema), *parameters)
        return now, seqs or ()

    async def _acquired(self) -> Any:
        if self._pool is None:
            raise StoreError(f"{self.address.where} is closed; open the store first.")
        while self._at_hand:
            connection, used_at = self._at_hand.pop()
            if _is_open(connection):
                if time.monotonic() - used_at < _IDLE_S:
                    return connection
                connection.terminate()
            await self._give_back(connection)
        self._asking += 1
        try:
            return await self._pool.acquire(timeout=self._timeout_s)
        finally:
            self._asking -= 1

    async def _begun(self, begin: Sequence[str]) -> Any:
        """A connection, in a transaction. One that died in the pool is replaced by the next."""
        for tried in range(1, _TRIES + 1):
            connection = None
            try:
                connection = await self._acquired()
                words = begin if connection.is_ours else (*begin, PLANNING)
                await connection.execute("; ".join(words))
                return connection
            except BaseException as error:
                if connection is not None:
                    await self._give_back(connection)
                if not isinstance(error, Exception):
                    raise
                if not lost_connection(error) or isinstance(error, TimeoutError) or tried == _TRIES:
                    raise translated(error, self.address.where) from error
                await self._expire()
                if connection is None:  # it cannot even be connected to: that is not mended by haste
                    raise translated(error, self.address.where) from error
        raise AssertionError("unreachable")

    async def _expire(self) -> None:
        """After a lost connection the others of the pool are likely dead too: each is made anew when used."""
        if self._pool is not None:
            await self._pool.expire_connections()
            while self._at_hand:
                await self._give_back(self._at_hand.pop()[0])

    async def _give_up(self, connection: Any) -> None:
        with suppress(said.PostgresError, said.InterfaceError, OSError, TimeoutError):
            if _is_open(connection):
                await connection.execute("ROLLBACK", timeout=5)
        await self._give_back(connection)

    async def _released(self, connection: Any) -> None:
        """It has served well. It stays at hand, unless somebody waits for one or there are enough."""
        if self._pool is None or self._asking or len(self._at_hand) >= _AT_HAND or not _is_open(connection):
            await self._give_back(connection)
        else:
            self._at_hand.append((connection, time.monotonic()))

    async def _give_back(self, connection: Any) -> None:
        """To the pool."""
        if self._pool is None:
            with suppress(Exception):
                connection.terminate()
            return
        with suppress(said.PostgresError, said.InterfaceError, OSError, TimeoutError):
            await self._pool.release(connection, timeout=5)


def _is_open(connection: Any) -> bool:
    """One that broke while it was lent has left the pool by itself, and cannot even be asked."""
    try:
        return not connection.is_closed()
    except said.InterfaceError:
        return False
