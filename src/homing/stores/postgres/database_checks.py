"""Checks whether Homing can work with a server, its schema, its role and its clock."""

from __future__ import annotations

from homing.core.ports.stores import StoreCheckResult
from homing.stores.common.migrations import find_pending_migrations
from homing.stores.postgres.migrations import MIGRATIONS, OLDEST_SERVER_VERSION, read_schema_state
from homing.stores.postgres.statements import PostgresTransaction

_MAX_SKEW_MS = 2_000

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


async def examine(tx: PostgresTransaction, where: str, now_ms: int) -> tuple[StoreCheckResult, ...]:
    """Returns a finding for each of server, schema, role and clock, with advice if there is a problem.

    If the schema and the role are fine, there is also one for the rows.
    """
    schema, role = await _schema(tx, where), await _role(tx)
    rows = [await _rows(tx)] if schema.ok and role.ok else []
    return (await _server(tx), schema, role, *rows, await _clock(tx, now_ms))


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
    return StoreCheckResult(name="role", ok=not advice, detail=detail, advice=advice)


async def _rows(tx: PostgresTransaction) -> StoreCheckResult:
    lost = await tx.one(_WITHOUT_QUEUE)
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
