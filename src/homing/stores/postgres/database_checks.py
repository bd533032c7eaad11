"""Checks whether Homing can work with a database: its settings, schema, role, clock and open transactions.

A result that is `ok` but has advice is a warning: Homing works, but slower or less safely than it could.
"""

from __future__ import annotations

from asyncpg import exceptions

from homing.core.durations import format_duration
from homing.core.errors import StoreError
from homing.core.ports.stores import StoreCheckResult
from homing.stores.common.migrations import find_pending_migrations
from homing.stores.postgres.connection import Database
from homing.stores.postgres.hosts import describe_host_error
from homing.stores.postgres.listen_notify import LISTEN_ERRORS, Listener
from homing.stores.postgres.migrations import (
    CREATE_UTF8_DATABASE,
    MIGRATIONS,
    OLDEST_SERVER_VERSION,
    read_schema_state,
)
from homing.stores.postgres.session_settings import DURABILITY_OVERRIDE
from homing.stores.postgres.statements import PostgresTransaction

_MAX_SKEW_MS = 2_000

_OLD_PREPARED_MS = 60_000
"""Age of a prepared transaction from which on it is reported. A transaction manager ends them in seconds."""

_DURABLE_LEVELS = ("on", "remote_apply")
"""Values of `synchronous_commit` that lose no acknowledged commit."""

_OLD_SNAPSHOT_MS = 600_000
"""Age of another session's transaction from which on it is reported."""

_SERVER = "SELECT current_setting('server_version_num')::integer, current_setting('server_version')"

# Row-level security does not apply to the owner's role, its members and roles with BYPASSRLS. All other roles
# would see no rows.
_ROLE = """
SELECT current_user::text,
  coalesce(bool_and(pg_has_role(current_user, c.relowner, 'USAGE')), true) OR r.rolbypassrls,
  coalesce(bool_and(
    has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
    AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE')), true)
FROM pg_roles AS r
LEFT JOIN pg_class AS c ON c.relnamespace = to_regnamespace($1::text) AND c.relkind = 'r'
WHERE r.rolname = current_user
GROUP BY r.rolbypassrls
"""

_MAY_MIGRATE = """
SELECT CASE WHEN to_regnamespace($1::text) IS NULL
  THEN has_database_privilege(current_database(), 'CREATE')
  ELSE has_schema_privilege($1::text, 'CREATE') END
"""

_WITHOUT_QUEUE = """
SELECT count(*) FROM homing.live AS l
WHERE NOT EXISTS (SELECT 1 FROM homing.queues AS q WHERE q.id = l.queue)
"""

_NOW = "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"

_COMMITS = """
SELECT current_setting('synchronous_commit'), current_setting('fsync')::boolean,
  current_setting('full_page_writes')::boolean
"""

_WRITES = "SELECT pg_is_in_recovery(), current_setting('default_transaction_read_only')::boolean"

# The locks of a prepared transaction belong to no process. One of them is that on its own id. Homing reads
# and writes rows, which the three weakest modes of locks permit. With two of these, rows may be locked too.
_PREPARED = """
SELECT p.gid, floor(extract(epoch FROM clock_timestamp() - p.prepared) * 1000)::bigint, (
    SELECT coalesce(max(CASE l.mode
      WHEN 'AccessShareLock' THEN 0 WHEN 'RowShareLock' THEN 1 WHEN 'RowExclusiveLock' THEN 1 ELSE 2 END), 0)
    FROM pg_locks AS own
    JOIN pg_locks AS l ON l.pid IS NULL AND l.virtualtransaction = own.virtualtransaction
    JOIN pg_class AS c ON c.oid = l.relation
    WHERE own.pid IS NULL AND own.transactionid = p.transaction
      AND c.relnamespace = to_regnamespace($1::text))
FROM pg_prepared_xacts AS p
WHERE p.database = current_database() AND p.prepared <= clock_timestamp() - $2 * interval '1 millisecond'
ORDER BY 3 DESC, 2 DESC LIMIT 1
"""

_HOLDS = ("holds back vacuum", "may lock rows of Homing", "locks Homing's tables")
"""What a prepared transaction does to Homing, by the strength of its locks."""

# A role that is no member of pg_read_all_stats sees the transactions of its own sessions only. VACUUM holds
# back no other VACUUM, so it may take as long as it needs.
_OLD_SNAPSHOTS = """
SELECT pid, floor(extract(epoch FROM clock_timestamp() - xact_start) * 1000)::bigint, state
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
  AND pid NOT IN (SELECT pid FROM pg_stat_progress_vacuum)
  AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
  AND xact_start <= clock_timestamp() - $1 * interval '1 millisecond'
ORDER BY xact_start LIMIT 1
"""


async def examine(tx: PostgresTransaction, where: str, now_ms: int) -> tuple[StoreCheckResult, ...]:
    """Returns a result for each check that needs no connection but that of this transaction.

    The rows are checked only if the schema and the role allow it.
    """
    schema, role = await _schema(tx, where), await _role(tx)
    rows = [await _rows(tx)] if schema.ok and role.ok else []
    return (
        await _server(tx),
        await _encoding(tx),
        await _commits(tx),
        await _writes(tx),
        schema,
        role,
        *rows,
        await _clock(tx, now_ms),
        await _prepared(tx),
        await _old_snapshots(tx),
    )


async def examine_connections(
    database: Database, listener: Listener, can_write: bool
) -> tuple[StoreCheckResult, ...]:
    """Returns a result for the pooler and one for LISTEN, which is tested on a connection of its own."""
    pooler = "none; connections are direct"
    if database.is_pooled:
        pooler = f"found; {database.cached_statements} prepared statements are kept per connection"
    return (
        StoreCheckResult(name="pooler", ok=True, detail=pooler),
        await _listen(database, listener, can_write),
    )


async def _encoding(tx: PostgresTransaction) -> StoreCheckResult:
    encoding: str = await tx.one("SELECT current_setting('server_encoding')")
    advice = "" if encoding == "UTF8" else CREATE_UTF8_DATABASE
    return StoreCheckResult(name="encoding", ok=not advice, detail=encoding, advice=advice)


async def _commits(tx: PostgresTransaction) -> StoreCheckResult:
    [(level, syncs, writes_full_pages)] = await tx.rows(_COMMITS)
    found = []
    if not syncs:
        found.append(("fsync is off: a power failure destroys the database", "set fsync = on"))
    if not writes_full_pages:
        detail = "full_page_writes is off: a power failure may damage pages"
        found.append((detail, "set it to on, unless the file system writes pages atomically"))
    if level not in _DURABLE_LEVELS:
        event = "a crash" if level == "off" else "the takeover of a standby"
        detail = f"synchronous_commit is {level}: {event} loses acknowledged sends"
        found.append((detail, f"reset {DURABILITY_OVERRIDE} of the database and the role"))
    detail = "; ".join(detail for detail, _ in found)
    return StoreCheckResult(
        name="commits",
        ok=syncs,
        detail=detail or f"synchronous_commit is {level} for Homing, fsync is on",
        advice="; ".join(advice for _, advice in found),
    )


async def _writes(tx: PostgresTransaction) -> StoreCheckResult:
    [(is_standby, is_read_only)] = await tx.rows(_WRITES)
    detail, advice = "allowed", ""
    if is_standby:
        detail, advice = "refused: this server is a standby", "connect to the primary"
    elif is_read_only:
        detail = "refused: default_transaction_read_only is on"
        advice = "connect to the primary, or reset it for server, database and role"
    return StoreCheckResult(name="writes", ok=not advice, detail=detail, advice=advice)


async def _prepared(tx: PostgresTransaction) -> StoreCheckResult:
    found = await tx.rows(_PREPARED, tx.schema, _OLD_PREPARED_MS)
    if not found:
        return StoreCheckResult(name="prepared", ok=True, detail="no old prepared transactions")
    [(gid, age_ms, strength)] = found
    what, quoted = _HOLDS[strength], gid.replace("'", "''")
    return StoreCheckResult(
        name="prepared",
        ok=strength < len(_HOLDS) - 1,
        detail=f"a prepared transaction {what} for {format_duration(age_ms)}",
        advice=f"COMMIT PREPARED or ROLLBACK PREPARED '{quoted}'",
    )


async def _old_snapshots(tx: PostgresTransaction) -> StoreCheckResult:
    found = await tx.rows(_OLD_SNAPSHOTS, _OLD_SNAPSHOT_MS)
    if not found:
        return StoreCheckResult(name="vacuum", ok=True, detail="no old transactions hold it back")
    [(pid, age_ms, state)] = found
    detail = f"held back for {format_duration(age_ms)} by pid {pid}, which is {state}"
    advice = f"end it, for example with SELECT pg_terminate_backend({pid})"
    return StoreCheckResult(name="vacuum", ok=True, detail=detail, advice=advice)


async def _listen(database: Database, listener: Listener, can_write: bool) -> StoreCheckResult:
    if not database.address.listen:
        return StoreCheckResult(name="listen", ok=True, detail="turned off by listen=false; workers poll")
    if not can_write:
        return StoreCheckResult(name="listen", ok=True, detail="not tested, because writes are refused")
    try:
        receives = await listener.test()
    except (*LISTEN_ERRORS, StoreError) as error:
        where = (database.address.listen_at or database.address).where.replace(",", ", ")
        detail = f"cannot be tested at {where} ({describe_host_error(error)})"
        return StoreCheckResult(name="listen", ok=False, detail=detail)
    if receives:
        return StoreCheckResult(name="listen", ok=True, detail="messages about new work arrive")
    return StoreCheckResult(
        name="listen",
        ok=True,
        detail="no message arrives, so workers poll more often",
        advice="give a direct URL of the same database as listen_url",
    )


async def _server(tx: PostgresTransaction) -> StoreCheckResult:
    [(number, name)] = await tx.rows(_SERVER)
    advice = "" if number >= OLDEST_SERVER_VERSION else "Homing needs PostgreSQL 14 or newer"
    return StoreCheckResult(name="server", ok=not advice, detail=f"PostgreSQL {name}", advice=advice)


async def _schema(tx: PostgresTransaction, where: str) -> StoreCheckResult:
    state = await read_schema_state(tx)
    missing = find_pending_migrations(MIGRATIONS, state, where)
    detail = f"{tx.schema} at version {state.version} of {MIGRATIONS[-1].version}"
    if not missing:
        return StoreCheckResult(name="schema", ok=True, detail=detail)
    names = ", ".join(migration.name for migration in missing)
    return StoreCheckResult(
        name="schema", ok=False, detail=detail, advice=f"`homing db migrate` applies {names}"
    )


async def _role(tx: PostgresTransaction) -> StoreCheckResult:
    [(role, unconfined, granted)] = await tx.rows(_ROLE, tx.schema)
    may_migrate = await tx.one(_MAY_MIGRATE, tx.schema)
    detail = f"{role} {'may' if may_migrate else 'may not'} migrate"
    advice = ""
    if not granted:
        advice = f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {tx.schema} TO {role}"
    elif not unconfined:
        advice = f"row-level security hides all rows from {role}; make it a member of the tables' owner"
    ok = not advice
    if ok and role == tx.schema:
        advice = "objects that it creates without a schema land in Homing's schema; rename it"
    return StoreCheckResult(name="role", ok=ok, detail=detail, advice=advice)


async def _rows(tx: PostgresTransaction) -> StoreCheckResult:
    await tx.script("SAVEPOINT rows; SET LOCAL lock_timeout = 1000")
    try:
        lost = await tx.one(_WITHOUT_QUEUE)
    except exceptions.LockNotAvailableError:  # another check names the transaction that holds the lock
        await tx.script("ROLLBACK TO SAVEPOINT rows")
        return StoreCheckResult(name="rows", ok=True, detail="not checked, because their table is locked")
    await tx.script("ROLLBACK TO SAVEPOINT rows")
    if not lost:
        return StoreCheckResult(name="rows", ok=True, detail="every notification has its queue")
    return StoreCheckResult(
        name="rows",
        ok=False,
        detail=f"{lost:,} notifications have no queue and are not delivered",
        advice="a running worker gives them one within a minute; `homing purge` does it now",
    )


async def _clock(tx: PostgresTransaction, now_ms: int) -> StoreCheckResult:
    skew_ms = (await tx.one(_NOW)) - now_ms
    ok = abs(skew_ms) <= _MAX_SKEW_MS
    advice = "" if ok else "synchronize the clocks; Homing uses the server's, so times in logs will differ"
    return StoreCheckResult(name="clock", ok=ok, detail=f"{skew_ms:+,} ms from here", advice=advice)
