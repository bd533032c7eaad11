"""`examine` finds what would keep Homing from working with a server."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import asyncpg
import pytest

from homing.core.ports.stores import StoreCheckResult
from homing.stores.common.clock_guard import steady_clock_ms
from homing.stores.postgres import PostgresStore

ROLE = f"homing_test_{os.getpid()}_runner"
"""Role names are unique per process: roles belong to the server, and tests run in several processes."""


@pytest.fixture
async def url(postgres_url: str) -> AsyncIterator[str]:
    """A migrated store, and the URL of a role that does not own it."""
    store = PostgresStore(postgres_url)
    await store.open()
    await store.migrate()
    await store.close()
    parts = urlsplit(postgres_url)
    await _execute(postgres_url, f"DROP ROLE IF EXISTS {ROLE}", f"CREATE ROLE {ROLE} LOGIN")
    yield parts._replace(netloc=f"{ROLE}@{parts.netloc.rpartition('@')[2]}").geturl()
    await _execute(postgres_url, f"DROP OWNED BY {ROLE} CASCADE", f"DROP ROLE {ROLE}")


async def _execute(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    for statement in statements:
        await connection.execute(statement)
    await connection.close()


async def _findings(url: str, *, skew_ms: int = 0) -> dict[str, StoreCheckResult]:
    store = PostgresStore(url)
    await store.open()
    found = await store.examine(now_ms=time.time_ns() // 1_000_000 + skew_ms)
    await store.close()
    return {finding.name: finding for finding in found}


async def test_the_owner_of_a_migrated_schema_gets_no_findings(postgres_url: str, url: str) -> None:
    findings = await _findings(postgres_url)
    assert set(findings) == {"server", "schema", "role", "rows", "clock"}
    assert all(finding.ok and not finding.advice for finding in findings.values())


async def test_a_role_without_grants_is_told_what_to_grant(postgres_url: str, url: str) -> None:
    await _execute(postgres_url, f"GRANT USAGE ON SCHEMA homing TO {ROLE}")
    await _execute(postgres_url, f"GRANT SELECT ON homing.schema_versions, homing.copies TO {ROLE}")
    role = (await _findings(url))["role"]
    assert not role.ok
    assert role.advice == f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA homing TO {ROLE}"
    assert "may not migrate" in role.detail


async def test_a_role_that_would_see_empty_tables_is_reported(postgres_url: str, url: str) -> None:
    granted = f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA homing TO {ROLE}"
    await _execute(postgres_url, f"GRANT USAGE ON SCHEMA homing TO {ROLE}", granted)
    role = (await _findings(url))["role"]
    assert not role.ok
    assert "row-level security hides all rows" in role.advice
    await _execute(postgres_url, f"ALTER ROLE {ROLE} BYPASSRLS")
    assert (await _findings(url))["role"].ok


async def test_a_wrong_clock_is_reported(postgres_url: str, url: str) -> None:
    clock = (await _findings(postgres_url, skew_ms=600_000))["clock"]
    assert not clock.ok
    assert clock.detail.startswith(("-600", "-599"))


async def test_a_role_that_may_not_read_the_record_of_the_clock_trusts_the_clock(
    postgres_url: str, url: str
) -> None:
    await _grant_reading(postgres_url)
    await _execute(postgres_url, f"REVOKE ALL ON homing.clock FROM {ROLE}")
    store = PostgresStore(url)
    await store.open()
    assert await store.size()
    assert await store.now_ms() > 0
    await store.close()


async def test_a_role_that_may_only_read_goes_on_by_the_old_time(postgres_url: str, url: str) -> None:
    await _grant_reading(postgres_url)
    ahead_ms = 0
    store = PostgresStore(url, steady_clock=lambda: steady_clock_ms() + ahead_ms)
    await store.open()
    now = await store.now_ms()
    for ahead_ms in (40_000, 41_000, 55_000):  # the store's clock was set back by the first of them
        assert await store.size()
        assert abs(await store.now_ms() - now - ahead_ms) < 10_000
    await store.close()


async def _grant_reading(url: str) -> None:
    await _execute(
        url,
        f"GRANT USAGE ON SCHEMA homing TO {ROLE}",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA homing TO {ROLE}",
        f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA homing TO {ROLE}",
    )
