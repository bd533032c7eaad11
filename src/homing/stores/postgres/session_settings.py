"""The server settings that Homing relies on, whatever the server, the database or the role sets.

A direct connection gets them once, for its whole session. Behind a pooler, other clients use the same server
session later, and the next transaction may run in another session. There, each transaction sets them for
itself, in the round trip that begins it, and the server takes them back when the transaction ends.

A caller's own connection (`send(connection=…)`) gets none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from msgspec import Struct

from homing.stores.postgres.transaction_limits import TransactionLimits

_SETTINGS = {
    # Every statement of the delivery path is written for an index. These settings make the planner use the
    # index even before it has statistics of a table that was empty a minute ago. They also make one plan
    # serve every batch.
    **dict.fromkeys(["enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin"], "off"),
    **dict.fromkeys(["enable_indexscan", "enable_nestloop"], "on"),
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    # One plan for every limit expects a tenth of the table, for which it would start parallel workers. To
    # start them takes tens of milliseconds, and most pages are read in one.
    "max_parallel_workers_per_gather": "0",
    # Batches are sent as texts of arrays, in which NULL is not quoted.
    "array_nulls": "on",
    # A call has its own timeout. A purge or a migration may take longer than the statements of other programs
    # that use the same database or role.
    "statement_timeout": "0",
}
"""Name of each setting and the value it gets."""

_SESSION_SETTINGS = {
    # A reading statement without BEGIN gets these. A transaction sets its isolation level itself.
    "default_transaction_isolation": "read committed",
    "default_transaction_deferrable": "off",
}
"""Settings that have an effect outside a transaction only, so that they are useless behind a pooler."""

DURABILITY_OVERRIDE = "homing.synchronous_commit"
"""A setting of a database or role, which takes the place of `synchronous_commit` in Homing's transactions."""

# `off` loses acknowledged notifications when the server crashes. `local` and `remote_write` lose some when a
# synchronous standby takes over. A superuser who accepts that sets the override.
_DURABILITY = f"""
SELECT set_config('synchronous_commit', coalesce(override, 'on'), {{local}})
FROM (SELECT nullif(current_setting('{DURABILITY_OVERRIDE}', true), '')) AS configured (override)
WHERE override IS NOT NULL OR current_setting('synchronous_commit') NOT IN ('on', 'remote_apply')
"""  # noqa: S608

# `pg_catalog` is searched first unless the search path names it at a later place.
_SEARCH_PATH = """
SELECT set_config('search_path', 'pg_catalog, ' || current_setting('search_path'), {local})
WHERE position('pg_catalog' IN current_setting('search_path')) > 1
"""


_NO_TOTAL_LIMIT = "SET LOCAL transaction_timeout = 0"
"""A transaction that only reads holds no lock that others wait for, so it may take longer."""


class SessionSettings(Struct, frozen=True):
    """The statements that make the settings, for servers of one version."""

    for_session: str
    """Statements that make all settings until the connection ends."""
    for_transaction: str
    """Statements that make all settings until the transaction ends."""
    for_reading: tuple[str, ...]
    """Statements for a transaction that only reads, after all others."""


@lru_cache(maxsize=16)
def build_session_settings(limits: TransactionLimits, server_major: int) -> SessionSettings:
    """Builds the statements for servers of this major version."""
    limited = limits.settings(server_major)
    return SessionSettings(
        _build({**_SETTINGS, **limited, **_SESSION_SETTINGS}, local=False),
        _build({**_SETTINGS, **limited}, local=True),
        (_NO_TOTAL_LIMIT,) if "transaction_timeout" in limited else (),
    )


def _build(settings: Mapping[str, str], *, local: bool) -> str:
    calls = (f"set_config('{name}', '{value}', {local})" for name, value in settings.items())
    return ";".join(
        ("SELECT " + ", ".join(calls), _SEARCH_PATH.format(local=local), _DURABILITY.format(local=local))
    )
