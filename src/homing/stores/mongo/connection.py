"""The connection to MongoDB: checks of the server, transactions that are repeated, and callers' sessions."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import pymongo
from pymongo import AsyncMongoClient, MongoClient, WriteConcern
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import ConfigurationError, InvalidURI, PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import ReadPreference
from pymongo.synchronous.client_session import ClientSession
from pymongo.uri_parser import parse_uri

from homing.core.clock_steps import ClockStep
from homing.core.errors import ConfigError, SchemaError, StoreBusy, StoreError, StoreUnavailable
from homing.core.ports.stores import CallerConnection
from homing.stores.common.blocking_calls import run_without_loop
from homing.stores.common.clock_guard import ClockGuard, StoreTime, steady_clock_ms
from homing.stores.common.sinks import NO_SINKS, SinkBook
from homing.stores.mongo.call_threads import CallThreads
from homing.stores.mongo.documents import Document
from homing.stores.mongo.errors import is_transient, translate
from homing.stores.mongo.schema import META, META_ID
from homing.stores.mongo.transaction import (
    CounterShards,
    MongoTransaction,
    OutdatedRows,
    Runner,
    SessionDatabase,
    SwallowedCancellation,
    completed,
)

log = logging.getLogger("homing.store")

R = TypeVar("R")

Action = Callable[[MongoTransaction], Awaitable[R]]

Beside = tuple[str, Sequence[Document]]
"""A collection and a pipeline that is run on it by the same command that reads the time."""

_DEFAULT_DATABASE = "homing"

_UNKNOWN_OPTION = re.compile(r"Unknown option: ([a-z]+)\.")

_WRONG_VALUE = re.compile(r"(?:The value of )?([a-z]+) must be ")

_CALL_TIMEOUT_S = 20.0
"""Longest time for one call of the store, with all its repetitions."""

_WRITE_ONCE_S = 2.0
"""Longest time for a write outside of a transaction, in which the server waits for locked documents."""

_CLOSE_TIMEOUT_S = 5.0

_APPLICATION = "homing"
"""Name of this program on the server."""

_ABANDONED_MS = 5_000
"""A transaction of this program in which nothing has happened for this long is ended if it is in the way.

Its process was killed or suspended. The server ends it after a minute, and keeps its documents locked until
then. A process that is only slow runs its transaction again.
"""

_DEFAULTS: Mapping[str, Any] = {
    # Longest wait for a primary. An election after the loss of one takes a few seconds.
    "serverSelectionTimeoutMS": 10_000,
    "connectTimeoutMS": 5_000,
}
"""Options of the client that the address may set to something else."""

_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.002, 0.1
"""Pauses before a transaction that met another one is run again. A random part of it is waited."""

_SNAPSHOT_ERRORS = frozenset({239, 246})
"""Codes for a snapshot that is too old, or not there yet because a collection was just created."""

_OLDEST_SERVER = (5, 0)

_IMITATIONS = (".docdb.", ".docdb-elastic.", ".cosmos.azure.com", ".documents.azure.com")
"""Parts of the host names of services that only imitate MongoDB."""

_MONGOS = "mongos"
"""The history of a sharded cluster."""

_WRITE_CONCERN = WriteConcern("majority", j=True)
_READ_CONCERN = ReadConcern("majority")
_IN_TRANSACTION = ReadConcern("snapshot")

_OPEN_TRANSACTIONS_S = 30
"""Longest wait for transactions that began before a sink was registered, or before a receipt was kept."""

_UNSEEN_TRANSACTIONS_S = 1
"""The wait if the user may not see which transactions are open."""

_OPEN_TRANSACTIONS = [
    {"$currentOp": {"allUsers": False, "idleSessions": True}},
    {"$match": {"transaction.parameters.txnNumber": {"$exists": True}}},
    {"$project": {"transaction.timeOpenMicros": 1}},
]
_OWN_OPEN_TRANSACTIONS = [
    _OPEN_TRANSACTIONS[0],
    {"$match": {"appName": _APPLICATION}},
    *_OPEN_TRANSACTIONS[1:],
]

_META_PIPELINE = (
    {"$match": {"_id": META_ID}},
    {"$project": {"sinks": 1, "clock": 1, "now": {"$toLong": "$$NOW"}}},
)


class InterruptedWrite(Exception):
    """Raised by a write outside of a transaction if some of its changes may have happened, and others not."""

    def __init__(self, timed_out: bool) -> None:
        super().__init__()
        self.timed_out = timed_out
        """True if the time was over, perhaps because a transaction has locked one of the documents."""


class MongoConnection:
    """The client of one process, and everything that a transaction needs besides its operations."""

    def __init__(
        self,
        url: str,
        *,
        steady_clock: Callable[[], int] | None = None,
        adjust_clock: Callable[[int], int] | None = None,
        on_other_history: Callable[[], None] = lambda: None,
    ) -> None:
        """`adjust_clock` changes the server's time, for tests. `on_other_history` is called before the first
        transaction with another primary, which may lack commits of the last one."""
        self._url = url
        self._database_name, self.where, self._defaults = _parse(url)
        self._steady_clock = steady_clock or steady_clock_ms
        self._adjust_clock = adjust_clock or (lambda now: now)
        self._on_other_history = on_other_history
        self._guard = ClockGuard()
        self._client: AsyncMongoClient[Document] | None = None
        self._blocking_client: MongoClient[Document] | None = None
        """The client of the calls that run on threads. It connects when it is used first."""
        self._threads = CallThreads()
        self._shards = CounterShards()
        self.history = ""

    @property
    def database(self) -> Any:
        """The database, for calls outside of transactions."""
        return self._database_of(self._client)

    @property
    def on_threads(self) -> SessionDatabase:
        """The calls outside of transactions that a claim makes. Each of them runs on a thread."""
        return SessionDatabase(self._blocking_database, run=self._threads.run)

    @property
    def _blocking_database(self) -> Any:
        return self._database_of(self._blocking_client)

    def _database_of(self, client: AsyncMongoClient[Document] | MongoClient[Document] | None) -> Any:
        if client is None:
            raise StoreError(f"{self.where} is closed; open the store first.")
        return client.get_database(
            self._database_name,
            write_concern=_WRITE_CONCERN,
            read_concern=_READ_CONCERN,
            read_preference=ReadPreference.PRIMARY,
        )

    async def open(self, check: Callable[[], Awaitable[None]]) -> None:
        """Connects. Raises `StoreError` if the server cannot be used, with what to do about it.

        `check` looks at the database. If it fails, the connection is closed again.
        """
        if self._client is not None:
            return
        options: dict[str, Any] = {
            "appname": _APPLICATION,
            "retryWrites": True,
            "retryReads": True,
            **self._defaults,  # an argument would override the same option of the address
        }
        client: AsyncMongoClient[Document] = AsyncMongoClient(self._url, **options)
        try:
            await _check_server(client, self.where)
        except PyMongoError as error:
            await client.close()
            raise translate(error, self.where) from error
        except BaseException:
            await client.close()
            raise
        self._client, self._blocking_client = client, MongoClient(self._url, connect=False, **options)
        self.note_primary()
        try:
            await self.outside(check())
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Disconnects."""
        client, self._client = self._client, None
        blocking, self._blocking_client = self._blocking_client, None
        with pymongo.timeout(_CLOSE_TIMEOUT_S):  # they end their sessions on the server
            if blocking is not None:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._threads.run(blocking.close), _CLOSE_TIMEOUT_S)
                self._threads.close()
            if client is not None:
                await client.close()

    # Transactions --------------------------------------------------------------------------------

    async def write(self, action: Action[R], *, beside: Beside | None = None, on_thread: bool = False) -> R:
        """Runs an action in a transaction, and again if another transaction was in its way.

        The first command of the transaction also runs the pipeline `beside`, unless `mongos` answers, which
        may refuse that. If the answer to the commit is lost, the commit is repeated until the server says
        what became of it.

        With `on_thread`, the whole transaction runs on a thread. The action then must not wait for anything
        else than the calls of its transaction, nor use what belongs to the event loop.
        """
        until, pause_s = time.monotonic() + _CALL_TIMEOUT_S, _FIRST_PAUSE_S
        next_look = time.monotonic() + _ABANDONED_MS / 1000
        while True:
            self.note_primary()
            shard, is_done = self._shards.take(), False
            try:
                with SwallowedCancellation(), pymongo.timeout(max(0.001, until - time.monotonic())):
                    if on_thread:
                        run = partial(self._run, self._blocking_database, action, shard, beside)
                        result: R = await self._threads.run(partial(_run_to_end, run))
                    else:
                        result = await self._run(self.database, action, shard, beside)
                is_done = True
                return result
            except OutdatedRows:
                if time.monotonic() >= until:
                    raise StoreUnavailable(f"{self.where} changed too often during this call.") from None
            except Exception as error:
                if not is_transient(error) or time.monotonic() + pause_s >= until:
                    raise translate(error, self.where) from error
                if time.monotonic() >= next_look:
                    await self.end_abandoned_transactions()
                    next_look = time.monotonic() + _ABANDONED_MS / 1000
            finally:
                self._shards.give_back(shard, met_another=not is_done)
            await asyncio.sleep(random.random() * pause_s)
            pause_s = min(_MAX_PAUSE_S, 2 * pause_s)

    async def _run(self, database: Any, action: Action[R], shard: int, beside: Beside | None) -> R:
        """Runs one transaction. With the database of the synchronous client, it awaits nothing."""
        session = database.client.start_session()
        try:
            await completed(
                session.start_transaction(read_concern=_IN_TRANSACTION, write_concern=_WRITE_CONCERN)
            )
            try:
                beside = None if self.history == _MONGOS else beside
                tx = await self._begin(SessionDatabase(database, session), shard=shard, beside=beside)
                result = await action(tx)
            except BaseException:
                with suppress(PyMongoError):
                    await completed(session.abort_transaction())
                raise
            await _commit(session)
            return result
        finally:
            await completed(session.end_session())

    async def read(self, action: Action[R]) -> R:
        """Runs an action whose reads see one snapshot."""
        database, until = self.database, time.monotonic() + _CALL_TIMEOUT_S
        while True:
            self.note_primary()
            try:
                with SwallowedCancellation(), pymongo.timeout(max(0.001, until - time.monotonic())):
                    async with database.client.start_session(snapshot=True) as session:
                        plain = database.with_options(read_concern=ReadConcern())
                        return await action(
                            await self._begin(SessionDatabase(plain, session), writable=False)
                        )
            except Exception as error:
                repeats = getattr(error, "code", None) in _SNAPSHOT_ERRORS
                if not repeats or time.monotonic() >= until:
                    raise translate(error, self.where) from error
            await asyncio.sleep(_MAX_PAUSE_S)

    async def write_once(self, action: Callable[[SessionDatabase], Awaitable[R]]) -> R:
        """Makes one write outside of a transaction, and does not repeat it.

        Raises `InterruptedWrite` if the connection was lost or if documents were locked for too long.
        """
        try:
            with SwallowedCancellation(), pymongo.timeout(_WRITE_ONCE_S):
                return await action(self.on_threads)
        except Exception as error:
            translated = translate(error, self.where)
            if type(translated) not in (StoreBusy, StoreUnavailable):
                raise translated from error
            raise InterruptedWrite(bool(getattr(error, "timeout", False))) from error

    async def look(self, action: Action[R]) -> R:
        """Runs an action that makes one call, and does not need the time."""
        try:
            with SwallowedCancellation(), pymongo.timeout(_CALL_TIMEOUT_S):
                return await action(MongoTransaction(self.on_threads, 0))
        except Exception as error:
            raise translate(error, self.where) from error

    async def look_now(
        self,
        action: Action[R],
        beside: Beside | None = None,
    ) -> R:
        """Runs an action that only reads, outside of a transaction, but at the time of the store's clock.

        The command that reads the time also runs the pipeline `beside`.
        """
        self.note_primary()
        try:
            with SwallowedCancellation(), pymongo.timeout(_CALL_TIMEOUT_S):
                return await action(await self._begin(self.on_threads, beside=beside))
        except Exception as error:
            raise translate(error, self.where) from error

    async def outside(self, call: Awaitable[R], *, timed: bool = True) -> R:
        """Awaits a call outside of a transaction, and translates its errors. `timed` limits its time."""
        try:
            with SwallowedCancellation(), pymongo.timeout(_CALL_TIMEOUT_S if timed else None):
                return await call
        except Exception as error:
            raise translate(error, self.where) from error

    async def join(self, given: Any, action: Action[R]) -> R:
        """Runs an action in the transaction of the caller's session. The caller commits or aborts it."""
        run: Runner | None = None
        session = given
        if isinstance(given, CallerConnection):
            session, run = given.connection, given.run
        if not isinstance(session, (AsyncClientSession, ClientSession)):
            raise StoreError(
                f"connection must be a session of PyMongo's client, not {type(session).__name__}."
            )
        if not session.in_transaction:
            raise StoreError("This session has no transaction to join. Start one first.")
        database: Any = session.client.get_database(self._database_name)
        is_async = isinstance(session, AsyncClientSession)
        joined = SessionDatabase(database, session, None if is_async else run)
        self.note_primary()
        shard = self._shards.take()
        try:
            with SwallowedCancellation():
                return await action(await self._begin(joined, shard=shard, writable=False))
        except Exception as error:
            raise translate(error, self.where) from error
        finally:
            self._shards.give_back(shard, met_another=True)  # the transaction of the caller goes on

    async def wait_for_open_transactions(self, *, of_callers: bool = True) -> None:
        """Waits until the transactions have ended that began before this call.

        They do not know what was committed since, such as a new sink. A caller's own transaction may stay
        open, so the wait has a limit. Unless `of_callers`, their transactions do not count.
        """
        began = next_look = time.monotonic()
        pause_s = _FIRST_PAUSE_S
        pipeline = _OPEN_TRANSACTIONS if of_callers else _OWN_OPEN_TRANSACTIONS
        while (asked := time.monotonic()) - began < _OPEN_TRANSACTIONS_S:
            try:
                with SwallowedCancellation(), pymongo.timeout(_CALL_TIMEOUT_S):
                    cursor = await self.database.client.admin.aggregate(pipeline)
                    found = await cursor.to_list()
            except PyMongoError as error:
                log.warning("cannot see which transactions are open: %s", type(error).__name__)
                await asyncio.sleep(_UNSEEN_TRANSACTIONS_S)
                return
            age = (asked - began) * 1e6  # not as of now: the answer may have come late
            if not any(one["transaction"].get("timeOpenMicros", 0) > age for one in found):
                return
            if asked >= next_look + _ABANDONED_MS / 1000:
                await self.end_abandoned_transactions()
                next_look = asked
            await asyncio.sleep(pause_s)
            pause_s = min(_MAX_PAUSE_S, 2 * pause_s)
        log.warning(
            "a transaction has been open for %d s, and does not know what was committed since",
            _OPEN_TRANSACTIONS_S,
        )

    async def end_abandoned_transactions(self) -> None:
        """Ends the transactions that killed or suspended processes of this program have left open."""
        left_open = [
            {"$currentOp": {"allUsers": False, "idleSessions": True}},
            {
                "$match": {
                    "active": False,
                    "appName": _APPLICATION,
                    "transaction.timeInactiveMicros": {"$gte": _ABANDONED_MS * 1000},
                }
            },
            {"$project": {"lsid": 1}},
        ]
        try:
            with SwallowedCancellation(), pymongo.timeout(_CALL_TIMEOUT_S):
                admin = self.database.client.admin
                found = await (await admin.aggregate(left_open)).to_list()
                if found:
                    await admin.command("killSessions", [{"id": one["lsid"]["id"]} for one in found])
                    log.warning("ended %d transactions that other processes have left open", len(found))
        except PyMongoError as error:
            log.warning("cannot end a transaction that is in the way: %s", type(error).__name__)

    async def now_ms(self) -> int:
        """Returns the time of the store's clock."""
        return await self.read(_time_of)

    async def suspected_step(self) -> ClockStep | None:
        """Returns the stored step of the clock that processes do not believe yet, or None."""
        try:
            with SwallowedCancellation(), pymongo.timeout(_CALL_TIMEOUT_S):
                found = await SessionDatabase(self.database).aggregate(META, _META_PIPELINE)
        except Exception as error:
            raise translate(error, self.where) from error
        step = _read_step(found[0]) if found else None
        return step if step is not None and step.is_current(self._adjust_clock(found[0]["now"])) else None

    async def _begin(
        self,
        db: SessionDatabase,
        *,
        shard: int = 0,
        writable: bool = True,
        beside: Beside | None = None,
    ) -> MongoTransaction:
        """Reads the time and the sinks, which also fixes the snapshot. Runs the pipeline `beside` too."""
        asked_ms = self._steady_clock()
        meta, found_beside = await _read_meta(db, beside)
        answered_ms = self._steady_clock()
        if meta is None:
            raise SchemaError(
                f"{self.where} has no collections of Homing yet. Run `homing db migrate` first."
            )
        measured = (self._adjust_clock(meta["now"]), asked_ms, answered_ms)
        moment = self._guard.check(*measured)
        if moment is None:
            moment = await self._resolve(db, measured, meta, writable=writable)
        return MongoTransaction(
            db,
            moment.now,
            settling=moment.settling,
            sinks=_read_sinks(meta),
            shard=shard,
            beside=found_beside,
        )

    async def _resolve(
        self,
        db: SessionDatabase,
        measured: tuple[int, int, int],
        meta: Document,
        *,
        writable: bool,
    ) -> StoreTime:
        resolution = self._guard.resolve(*measured, _read_step(meta), writable=writable)
        if writable and resolution.clear and "clock" in meta:
            await db.update(META, {"_id": META_ID}, {"$unset": {"clock": ""}})
        elif writable and (step := resolution.record) is not None:
            stored = {
                "correction_ms": step.correction_ms,
                "suspected_at": step.suspected_at,
                "renewed_at": step.renewed_at,
            }
            await db.update(META, {"_id": META_ID}, {"$set": {"clock": stored}})
        return resolution.time

    def note_primary(self) -> None:
        """Drops what this process remembers if another server was elected."""
        clients = [client for client in (self._client, self._blocking_client) if client is not None]
        _, history = max(map(_election, clients), default=("", ""))
        if history and history != self.history:
            if self.history:
                self._on_other_history()
            self.history = history


async def _read_meta(
    db: SessionDatabase, beside: Beside | None
) -> tuple[Document | None, list[Document] | None]:
    """Returns the document of the database, or None, and the documents that a pipeline finds beside it."""
    if beside is None:
        found = await db.aggregate(META, _META_PIPELINE)
        return (found[0] if found else None), None
    collection, pipeline = beside
    if db.has_session:  # a transaction does not permit $unionWith
        joined = {"$lookup": {"from": collection, "pipeline": list(pipeline), "as": "beside"}}
        found = await db.aggregate(META, (*_META_PIPELINE, joined))
        return (found[0], found[0]["beside"]) if found else (None, None)
    # Not a $lookup, because its result is one document, whose size is limited.
    meta = {"$unionWith": {"coll": META, "pipeline": list(_META_PIPELINE)}}
    found = await db.aggregate(collection, (*pipeline, meta))
    # It is the last one on a replica set, but the order of a union is not defined.
    read = next((one for one in reversed(found) if one["_id"] == META_ID), None)
    return read, [one for one in found if one is not read]


def _run_to_end(run: Callable[[], Coroutine[Any, Any, R]]) -> R:
    return run_without_loop(run())


async def _time_of(tx: MongoTransaction) -> int:
    return tx.now


async def _commit(session: AsyncClientSession | ClientSession) -> None:
    """Commits. Asks again while it is unknown whether the commit has happened; the server remembers it."""
    while True:
        try:
            await completed(session.commit_transaction())
            return
        except PyMongoError as error:
            if not error.has_error_label("UnknownTransactionCommitResult") or error.timeout:
                raise
        if isinstance(session, ClientSession):
            time.sleep(_FIRST_PAUSE_S)  # noqa: ASYNC251 (on a thread)
        else:
            await asyncio.sleep(_FIRST_PAUSE_S)


def _parse(url: str) -> tuple[str, str, dict[str, Any]]:
    """Returns the name of the database, and the address for messages, which has no credentials.

    The third value are the defaults of options that the address does not set.
    """
    scheme = url.partition("://")[0]
    shown = url.partition("://")[2].rpartition("@")[2].partition("?")[0]
    try:
        # A host of mongodb+srv:// is looked up by the client, when it connects.
        plain = url if scheme == "mongodb" else f"mongodb://{url.partition('://')[2]}"
        parsed = parse_uri(plain, warn=False)
    except (InvalidURI, ConfigurationError, ValueError) as error:
        raise ConfigError(
            "store",
            f"is not a valid address{_cause(url, error)}; write mongodb://HOST/DATABASE "
            f"(given: {scheme}://{shown})",
        ) from None
    name = parsed["database"] or _DEFAULT_DATABASE
    hosts = shown.partition("/")[0]
    defaults = {option: value for option, value in _DEFAULTS.items() if option not in parsed["options"]}
    return name, f"{scheme}://{hosts}/{name}", defaults


async def _check_server(client: AsyncMongoClient[Document], where: str) -> None:
    build = await client.admin.command("buildInfo")
    refusal = refuse_server(where, await client.admin.command("hello"), build)
    if refusal is not None:
        raise StoreError(refusal)


def refuse_server(where: str, hello: Mapping[str, Any], build: Mapping[str, Any]) -> str | None:
    """Returns why Homing cannot use a server, with advice, or None if it can.

    `hello` and `build` are the server's answers to the commands `hello` and `buildInfo`.
    """
    names = (where, *hello.get("hosts", ()), hello.get("me", ""))  # `where` may be that of a tunnel
    if "ferretdb" in build or any(host in name for host in _IMITATIONS for name in names):
        return (
            f"{where} only imitates MongoDB, and lacks what Homing relies on. Use MongoDB 5.0 or newer, or "
            "PostgreSQL."
        )
    if "setName" not in hello and hello.get("msg") != "isdbgrid":
        return (
            f"{where} is a single server without a replica set, which has no transactions. Start mongod with "
            "--replSet, run rs.initiate() once, and open the store again."
        )
    if tuple(build.get("versionArray", (0, 0)))[:2] < _OLDEST_SERVER:
        oldest = ".".join(map(str, _OLDEST_SERVER))
        return f"{where} runs MongoDB {build.get('version')}; Homing needs {oldest} or newer."
    return None


def _election(client: AsyncMongoClient[Document] | MongoClient[Document]) -> tuple[str, str]:
    """Returns what identifies the election of the current primary, after something that rises with elections.

    Both are empty if none is known. The two clients of a process hear of an election one after the other.
    """
    for server in client.topology_description.server_descriptions().values():
        if server.server_type_name == "RSPrimary":
            return str(server.election_id), f"{server.set_version}:{server.election_id}"
        if server.server_type_name == "Mongos":
            return "", _MONGOS
    return "", ""


def _read_step(meta: Document) -> ClockStep | None:
    found = meta.get("clock")
    if found is None:
        return None
    return ClockStep(
        correction_ms=found["correction_ms"],
        suspected_at=found["suspected_at"],
        renewed_at=found["renewed_at"],
    )


def _read_sinks(meta: Document) -> SinkBook:
    found = meta.get("sinks")
    if not found:
        return NO_SINKS
    sinks = tuple(sorted((one["name"], frozenset(one["events"])) for one in found))
    return SinkBook(sinks, frozenset().union(*(events for _, events in sinks)))


def _cause(url: str, error: Exception) -> str:
    """Returns why an address is not valid. Repeats nothing that may be part of a password."""
    text = str(error)
    if "must be escaped" in text or "@" in url.partition("?")[2]:
        return ": special characters of the user name and password must be percent-encoded, such as %40 for @"
    if option := _UNKNOWN_OPTION.match(text):
        return f": the option {option[1]} does not exist"
    if option := _WRONG_VALUE.match(text):
        return f": the value of {option[1]} is not valid"
    return ""
