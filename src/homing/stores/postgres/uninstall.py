"""Takes Homing out of a database again: its tables, views, functions and cron jobs, and its schema.

Objects of others are never touched. If some are in Homing's schema or depend on it, nothing is removed. The
trigger functions that call Homing stay, because they may do other things as well.
"""

from __future__ import annotations

import asyncio
import re

from homing.core.errors import CommandRefused, SchemaError, StoreBusy
from homing.core.ports.stores import DEAD_AFTER_MS, Uninstallation
from homing.stores.postgres.connection import Database
from homing.stores.postgres.function_bodies import catches_missing_schema
from homing.stores.postgres.migrations import MIGRATIONS, read_schema_state
from homing.stores.postgres.statements import PostgresTransaction

LOCK_TIMEOUT_MS = 250
"""Maximum time that the removal waits for a lock, and so blocks other transactions, in each try."""

PATIENCE_S = 60.0
"""Time for which the removal is retried before it fails because other transactions hold a lock."""

_BETWEEN_TRIES_S = 0.5

_SQL = "\n".join(migration.sql for migration in MIGRATIONS)

_CREATED = re.compile(
    r"CREATE (?:OR REPLACE )?(?:TABLE|VIEW|SEQUENCE)(?: IF NOT EXISTS)? homing\.([a-z0-9_]+)"
)

_CREATED_FUNCTION = re.compile(
    r"CREATE (?:OR REPLACE )?FUNCTION homing\.([a-z0-9_]+)\((.*?)\)\s+(?:RETURNS|LANGUAGE)", re.DOTALL
)

_CREATED_PART = re.compile(
    r"CREATE (?:UNIQUE )?(?:INDEX|POLICY|TRIGGER)(?: CONCURRENTLY)?(?: IF NOT EXISTS)? ([a-z0-9_]+)"
    r"(?:\s[^;]*?)?\sON homing\.([a-z0-9_]+)"
)


def _types(arguments: str) -> str:
    """Returns the types of a function's arguments, without names, defaults and results."""
    kept = [one.split() for one in arguments.split(",") if one.strip() and one.split()[0] != "OUT"]
    return ",".join(words[1] for words in kept)


OWN_NAMES = frozenset({"schema_versions", *_CREATED.findall(_SQL)})
"""Names of all tables, views and sequences that migrations create."""

OWN_FUNCTIONS = frozenset(
    f"{name}({_types(arguments)})" for name, arguments in _CREATED_FUNCTION.findall(_SQL)
)
"""Signatures of all functions that migrations create. Functions of others may have the same names."""

OWN_PARTS = frozenset(_CREATED_PART.findall(_SQL))
"""Names of all indexes, policies and triggers that migrations create, each with its table."""

# Sequences of identity columns are parts of their table.
_OBJECTS = """
SELECT CASE c.relkind WHEN 'v' THEN 'VIEW' WHEN 'S' THEN 'SEQUENCE' WHEN 'r' THEN 'TABLE' ELSE 'OTHER' END,
  c.relname::text, c.oid::regclass::text
FROM pg_class AS c
WHERE c.relnamespace = to_regnamespace($1::text) AND c.relkind IN ('r', 'p', 'v', 'm', 'S', 'f', 'c')
  AND NOT EXISTS (SELECT 1 FROM pg_depend AS d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid
    AND c.relkind = 'S' AND d.deptype IN ('a', 'i'))
UNION ALL
SELECT 'FUNCTION', p.proname::text, p.oid::regprocedure::text
FROM pg_proc AS p WHERE p.pronamespace = to_regnamespace($1::text)
UNION ALL
SELECT 'OTHER', t.typname::text, t.oid::regtype::text
FROM pg_type AS t WHERE t.typnamespace = to_regnamespace($1::text) AND t.typtype IN ('d', 'e', 'r')
ORDER BY 1, 3
"""

_OWN_FUNCTIONS = """
SELECT DISTINCT to_regprocedure($1::text || '.' || one)::text FROM unnest($2::text[]) AS one
"""

# Parts of Homing's tables that DROP TABLE would drop as well. Indexes of constraints are not listed.
_PARTS = """
SELECT p.name::text, t.relname::text, pg_describe_object(p.class, p.oid, 0)
FROM pg_class AS t JOIN (
  SELECT 'pg_class'::regclass AS class, i.indexrelid AS oid, c.relname AS name, i.indrelid AS relation
  FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
  WHERE NOT EXISTS (SELECT 1 FROM pg_constraint AS k WHERE k.conindid = i.indexrelid)
  UNION ALL
  SELECT 'pg_trigger'::regclass, oid, tgname, tgrelid FROM pg_trigger WHERE NOT tgisinternal
  UNION ALL
  SELECT 'pg_policy'::regclass, oid, polname, polrelid FROM pg_policy
  UNION ALL
  SELECT 'pg_rewrite'::regclass, oid, rulename, ev_class FROM pg_rewrite WHERE rulename <> '_RETURN'
) AS p ON p.relation = t.oid
WHERE t.relnamespace = to_regnamespace($1::text)
ORDER BY 3
"""

# A view depends through its rule. Policies, defaults and constraints belong to their table.
_DEPENDENTS = """
WITH own AS (
  SELECT 'pg_class'::regclass AS class, oid FROM pg_class WHERE relnamespace = to_regnamespace($1::text)
  UNION ALL
  SELECT 'pg_proc'::regclass, oid FROM pg_proc WHERE pronamespace = to_regnamespace($1::text)
  UNION ALL
  SELECT 'pg_type'::regclass, oid FROM pg_type WHERE typnamespace = to_regnamespace($1::text)
), owned AS (
  SELECT 'pg_rewrite'::regclass AS class, oid, ev_class AS relation FROM pg_rewrite
  UNION ALL
  SELECT 'pg_trigger'::regclass, oid, tgrelid FROM pg_trigger
  UNION ALL
  SELECT 'pg_policy'::regclass, oid, polrelid FROM pg_policy
  UNION ALL
  SELECT 'pg_attrdef'::regclass, oid, adrelid FROM pg_attrdef
  UNION ALL
  SELECT 'pg_constraint'::regclass, oid, conrelid FROM pg_constraint WHERE conrelid <> 0
)
SELECT DISTINCT CASE WHEN o.relation IS NOT NULL THEN pg_describe_object('pg_class'::regclass, o.relation, 0)
  ELSE pg_describe_object(d.classid, d.objid, 0) END
FROM own
JOIN pg_depend AS d ON d.refclassid = own.class AND d.refobjid = own.oid
LEFT JOIN owned AS o ON o.class = d.classid AND o.oid = d.objid
WHERE d.deptype IN ('n', 'a') AND NOT EXISTS (
  SELECT 1 FROM own AS inside WHERE (inside.class, inside.oid) IN (
    (d.classid, d.objid), ('pg_class'::regclass, o.relation)))
ORDER BY 1
"""

_CALLERS = r"""
SELECT p.oid::regprocedure::text, p.prosrc, l.lanname = 'plpgsql' AND NOT c.unqualified,
  coalesce((SELECT string_agg(format('%s on %s', t.tgname, t.tgrelid::regclass), ', ' ORDER BY t.tgname)
    FROM pg_trigger AS t WHERE t.tgfoid = p.oid), '')
FROM pg_proc AS p JOIN pg_language AS l ON l.oid = p.prolang
CROSS JOIN LATERAL (SELECT EXISTS (
  SELECT 1 FROM unnest(p.proconfig) AS one WHERE one ~* ('^search_path=.*\m' || $1::text || '\M')
) AS unqualified) AS c
WHERE l.lanname NOT IN ('c', 'internal') AND p.pronamespace <> to_regnamespace($1::text)
  AND p.pronamespace <> 'pg_catalog'::regnamespace
  AND (c.unqualified OR p.prosrc ~* ('\m' || $1::text || '"?\s*\.'))
ORDER BY 1
"""

_HAS_CRON = """
SELECT to_regclass('cron.job') IS NOT NULL AND has_schema_privilege(to_regnamespace('cron')::oid, 'USAGE')
"""

_CRON_JOBS = r"""
SELECT jobid, coalesce(jobname, jobid::text) FROM cron.job
WHERE database = current_database() AND command ~* ('\m' || $1::text || '"?\s*\.') ORDER BY jobid
"""

_ROLES = "SELECT role::text FROM homing.tenant_roles ORDER BY 1"

_WORKERS = "SELECT name FROM homing.workers WHERE seen_at > homing.now_ms() - $1 ORDER BY name"

_WAITING = (
    "SELECT coalesce(sum(count), 0)::bigint FROM homing.queue_stats WHERE status IN ('pending', 'retrying')"
)

_NOTIFICATIONS = "SELECT coalesce(sum(count), 0)::bigint FROM homing.queue_stats"

_OWNS_SCHEMA = "SELECT pg_has_role(nspowner, 'USAGE') FROM pg_namespace WHERE nspname = $1"


async def plan_uninstallation(tx: PostgresTransaction, where: str) -> Uninstallation:
    """Returns what `uninstall` would remove, what would stay, and what prevents it. Changes nothing.

    Raises `SchemaError` if there is no schema, or if a newer release has created it.
    """
    state = await read_schema_state(tx)
    if state.version == 0:
        raise SchemaError(f"{where} has no schema {tx.schema} of Homing.")
    if state.version != MIGRATIONS[-1].version:
        raise SchemaError(
            f"{where} has schema version {state.version}; this release knows {MIGRATIONS[-1].version}. Run "
            "`homing db migrate` first, or use the newer release."
        )
    await tx.run("SET LOCAL search_path = pg_catalog")  # so that names contain their schema
    found = await tx.rows(_OBJECTS, tx.schema)
    own_functions = {name for (name,) in await tx.rows(_OWN_FUNCTIONS, tx.schema, sorted(OWN_FUNCTIONS))}
    own = {full for kind, name, full in found if kind != "OTHER" and name in OWN_NAMES} | own_functions
    parts = await tx.rows(_PARTS, tx.schema)
    callers = [
        (_caller(name, triggers), may_catch and catches_missing_schema(source, tx.schema))
        for name, source, may_catch, triggers in await tx.rows(_CALLERS, tx.schema)
    ]
    jobs = await tx.rows(_CRON_JOBS, tx.schema) if await tx.one(_HAS_CRON) else []
    return Uninstallation(
        schema=tx.schema,
        objects={
            kind.lower() + "s": tuple(full for each, _, full in found if each == kind and full in own)
            for kind in ("TABLE", "VIEW", "FUNCTION", "SEQUENCE")
        },
        notifications=await tx.one(_NOTIFICATIONS),
        waiting=await tx.one(_WAITING),
        cron_jobs=tuple(name for _, name in jobs),
        roles=tuple(role for (role,) in await tx.rows(_ROLES)),
        guarded_callers=tuple(name for name, guarded in callers if guarded),
        callers=tuple(name for name, guarded in callers if not guarded),
        workers=tuple(name for (name,) in await tx.rows(_WORKERS, DEAD_AFTER_MS)),
        foreign=(
            *(full for _, _, full in found if full not in own),
            *(full for name, table, full in parts if (name, table) not in OWN_PARTS),
        ),
        dependents=tuple(text for (text,) in await tx.rows(_DEPENDENTS, tx.schema)),
        drops_schema=await tx.one(_OWNS_SCHEMA, tx.schema),
    )


async def uninstall(database: Database, where: str, *, force: bool) -> Uninstallation:
    """Removes everything in one transaction. Raises `CommandRefused` if something prevents it.

    A transaction that has notified holds a lock until it ends. Meanwhile, the removal tries again and again
    for a moment, so that no other transaction waits for it. Raises `StoreBusy` after `PATIENCE_S`.
    """
    clock = asyncio.get_running_loop().time
    give_up_at = clock() + PATIENCE_S
    while True:
        try:
            return await database.do(lambda tx: _remove(tx, where, force), timed=False, may_take_long=True)
        except StoreBusy:
            if clock() >= give_up_at:
                raise StoreBusy(
                    f"{where}: other transactions have held locks on Homing's tables for {PATIENCE_S:.0f} s. "
                    "Nothing was removed; end those transactions (pg_stat_activity shows them) and try again."
                ) from None
        await asyncio.sleep(_BETWEEN_TRIES_S)


async def _remove(tx: PostgresTransaction, where: str, force: bool) -> Uninstallation:
    plan = await plan_uninstallation(tx, where)
    if problems := plan.problems(force=force):
        raise CommandRefused(f"{where} is left as it is: {problems[0]}")
    await tx.run(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}")
    if plan.cron_jobs:
        for job, _ in await tx.rows(_CRON_JOBS, tx.schema):
            await tx.one("SELECT cron.unschedule($1::bigint)", job)
    for kind in ("views", "tables", "functions", "sequences"):
        if names := plan.objects[kind]:
            await tx.run(f"DROP {kind.upper()[:-1]} {', '.join(names)} RESTRICT")
    if plan.drops_schema:
        await tx.run(f"DROP SCHEMA {tx.schema} RESTRICT")
    return plan


def _caller(name: str, triggers: str) -> str:
    return f"{name} (trigger {triggers})" if triggers else name
