"""A tenant's own role sees that tenant's rows and no other's, whatever it tries."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import asyncpg
import pytest

from homing.core.lifecycle.commands import CommandName
from homing.core.lifecycle.receipts import ReceiptEvent
from homing.core.ports.stores import Entry
from homing.stores.postgres import PostgresStore
from homing.testing.builders import (
    DAY_MS,
    a_claim_request,
    a_notification,
    a_receipt,
    a_submission,
    dead,
    retry_in,
    sent,
)
from homing.testing.store_suite.harness import a_command, subscribe

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]

# Roles belong to the server, and tests run in several processes.
ROLE, OTHER, LOGIN = (f"homing_test_{os.getpid()}_{name}" for name in ("acme", "b", "login"))
SECRET = "of-beta-alone"
"""Part of all data of the other tenant. It must never be read."""

OWN = {
    *("messages", "live", "settled", "attempts", "causes", "ledger", "registry"),
    *("tallies", "roll_ups", "minute_roll_ups", "goals", "retry_queue"),
    *("failed_notifications", "dead_letters", "queue_stats", "retry_statistics"),
}
"""What a tenant's role may read. From all other tables and views it gets nothing."""


@pytest.fixture
def url(postgres_url: str) -> Iterator[str]:
    """A store with two tenants, each with its own role."""
    asyncio.run(_prepare(postgres_url))
    yield postgres_url
    asyncio.run(_drop_roles(postgres_url))


async def _prepare(url: str) -> None:
    await _drop_roles(url)
    store = PostgresStore(url)
    await store.open()
    await store.migrate()
    await subscribe(store, "StatusChanged")
    for tenant in ("acme", "beta"):
        await _fill(store, tenant, SECRET if tenant == "beta" else "of-acme")
    await store.close()
    owner = await asyncpg.connect(url)
    await owner.execute(f"CREATE ROLE {ROLE} LOGIN")
    await owner.execute("SELECT homing.create_tenant_role('acme', $1)", ROLE)
    await owner.execute("SELECT homing.create_tenant_role('beta', $1)", OTHER)
    await owner.execute(f"CREATE ROLE {LOGIN} LOGIN")
    await owner.close()


async def _fill(store: PostgresStore, tenant: str, mark: str) -> None:
    news = [
        a_notification(type=mark, dedup_key=f"{mark}-{number}", dedup_window_ms=DAY_MS) for number in range(4)
    ]
    await store.accept([a_submission(*news, tenant=tenant, key=mark, batch_id=mark)])
    claims = (await store.claim(a_claim_request(worker=mark))).claims
    await store.settle(
        [
            sent(claims[0], f"{mark}-m"),
            dead(claims[1], error=f"{mark} died"),
            retry_in(claims[2], DAY_MS, error=f"{mark} fell"),
        ]
    )
    await store.receipt([a_receipt(f"{mark}-m", ReceiptEvent.OPEN), a_receipt(f"{mark}-unknown")])
    await store.amend(tenant, [claims[1].id], a_command(CommandName.ACKNOWLEDGE))
    await store.put([Entry(tenant=tenant, kind="template", key=mark, value={"body": mark})], who=mark)


async def _drop_roles(url: str) -> None:
    owner = await asyncpg.connect(url)
    for role in (LOGIN, ROLE, OTHER):
        if await owner.fetchval("SELECT 1 FROM pg_roles WHERE rolname = $1", role):
            await owner.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")
    await owner.close()


@pytest.fixture
async def owner(url: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(url)
    yield connection
    await connection.close()


@pytest.fixture
async def acme(url: str) -> AsyncIterator[Connection]:
    """Returns the tenant's own login."""
    connection = await _as(url, ROLE)
    yield connection
    await connection.close()


async def _as(url: str, role: str) -> Connection:
    parts = urlsplit(url)
    place = parts.netloc.rpartition("@")[2]
    return await asyncpg.connect(parts._replace(netloc=f"{role}@{place}").geturl())


async def _relations(owner: Connection) -> list[str]:
    found = await owner.fetch(
        "SELECT relname FROM pg_class"
        " WHERE relnamespace = 'homing'::regnamespace AND relkind IN ('r', 'v', 'm')"
    )
    return sorted(name for (name,) in found)


async def test_every_table_and_view_shows_only_the_tenant_s_rows(owner: Connection, acme: Connection) -> None:
    shown = set()
    for name in await _relations(owner):
        try:
            rows = await acme.fetch(f"SELECT t::text FROM homing.{name} AS t")
        except asyncpg.InsufficientPrivilegeError:
            continue
        shown.add(name)
        text = "\n".join(row[0] for row in rows)
        assert SECRET not in text, name
        assert "beta" not in text, name
        # The sums are written by upkeep, and `retry_queue` has only tasks of the bridge to RabbitMQ.
        may_be_empty = ("tallies", "roll_ups", "minute_roll_ups", "goals", "retry_queue")
        assert rows or name in may_be_empty, f"{name} shows the tenant its own"
    assert shown == OWN


async def test_counts_cover_only_the_tenant_s_rows(owner: Connection, acme: Connection) -> None:
    for name in sorted(OWN):
        everybody = await owner.fetchval(f"SELECT count(*) FROM homing.{name}")
        own = await acme.fetchval(f"SELECT count(*) FROM homing.{name}")
        assert own <= everybody / 2, name
    assert await acme.fetchval("SELECT count(*) FROM homing.messages WHERE tenant = 'beta'") == 0
    assert await acme.fetchval("SELECT count(*) FROM homing.messages") == 4


async def test_even_a_role_with_all_grants_sees_no_row_of_another_tenant(
    owner: Connection, acme: Connection
) -> None:
    """A careless GRANT reveals nothing, except in views that PostgreSQL 14 runs as their owner."""
    await owner.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA homing TO {ROLE}")
    invoked = acme.get_server_version() >= (15, 0)
    for name in await _relations(owner):
        if not invoked and name in ("states", "rows", "all_tallies", "all_roll_ups"):
            continue
        text = "\n".join(row[0] for row in await acme.fetch(f"SELECT t::text FROM homing.{name} AS t"))
        assert SECRET not in text, name
        assert "beta" not in text, name


async def test_a_guessed_id_finds_nothing(owner: Connection, acme: Connection) -> None:
    [(id, seq)] = await owner.fetch("SELECT id, seq FROM homing.messages WHERE tenant = 'beta' LIMIT 1")
    assert await acme.fetch("SELECT * FROM homing.messages WHERE id = $1", id) == []
    for name in ("live", "settled", "attempts", "causes"):
        assert await acme.fetch(f"SELECT * FROM homing.{name} WHERE seq = $1", seq) == []
    for name in ("failed_notifications", "dead_letters"):
        assert await acme.fetch(f"SELECT * FROM homing.{name} WHERE id = $1", id) == []


@pytest.mark.parametrize("name", ["acknowledge", "retry_now", "resend"])
async def test_a_command_for_another_tenant_s_notification_is_answered_like_an_unknown_one(
    owner: Connection, acme: Connection, name: str
) -> None:
    theirs = await owner.fetchval("SELECT id FROM homing.messages WHERE tenant = 'beta' LIMIT 1")
    nobodys = await owner.fetchval("SELECT gen_random_uuid()")
    said = []
    for id in (theirs, nobodys):
        with pytest.raises(asyncpg.PostgresError) as refused:
            await acme.execute(f"SELECT homing.{name}($1)", id)
        said.append(str(refused.value).replace(str(id), "ID"))
    assert said[0] == said[1]
    assert await owner.fetchval("SELECT count(*) FROM homing.inbox") == 0


async def test_enqueued_requests_belong_to_the_role_s_tenant_whatever_they_say(
    owner: Connection, acme: Connection
) -> None:
    await acme.execute(
        "SELECT homing.enqueue(channel => 'email', recipient => $1::jsonb, tenant => 'beta')",
        '{"email": "a@example.org"}',
    )
    assert await owner.fetchval("SELECT tenant FROM homing.inbox") == "acme"


async def test_a_function_that_leaks_its_arguments_gets_only_the_tenant_s_rows(
    owner: Connection, acme: Connection
) -> None:
    """A cheap user-defined function in WHERE is not called for hidden rows."""
    await owner.execute(f"GRANT USAGE, CREATE ON SCHEMA public TO {ROLE}")
    await acme.execute(
        "CREATE FUNCTION public.tell(text) RETURNS boolean LANGUAGE plpgsql COST 0.0001 AS"
        " $$ BEGIN RAISE NOTICE 'seen %', $1; RETURN true; END $$"
    )
    heard: list[str] = []
    acme.add_log_listener(lambda _, message: heard.append(str(message)))
    columns = {
        **dict.fromkeys(sorted(OWN), "t::text"),
        **dict.fromkeys(("messages", "live", "settled"), "t.tenant"),
    }
    for name, told in columns.items():
        await acme.fetch(f"SELECT 1 FROM homing.{name} AS t WHERE public.tell({told})")
    await asyncio.sleep(0)
    assert any("acme" in text for text in heard), "it was called"
    assert not [text for text in heard if SECRET in text or "beta" in text]


async def test_an_error_reveals_nothing_about_another_tenant_s_row(acme: Connection) -> None:
    """A division by zero on a hidden row would reveal that it exists."""
    for name in ("messages", "live", "settled", "registry"):
        await acme.fetch(f"SELECT 1 FROM homing.{name} WHERE 1 / (tenant <> 'beta')::integer = 1")


async def test_a_tenant_s_role_cannot_write(acme: Connection) -> None:
    for statement in (
        "UPDATE homing.messages SET tenant = 'beta'",
        "DELETE FROM homing.settled",
        "INSERT INTO homing.registry VALUES (1, 1, 'acme', 'template', 'x', '{}', 'me')",
        "INSERT INTO homing.tenant_roles SELECT 'pg_monitor'::regrole, 'beta'",
        "SELECT homing.create_tenant_role('beta', current_user::text)",
        "SELECT homing.drop_tenant_role(current_user::text)",
        "SELECT homing.cleanup()",
        "TRUNCATE homing.messages",
        "SELECT nextval('homing.seqs')",
    ):
        with pytest.raises(asyncpg.PostgresError):
            await acme.execute(statement)


async def test_planner_statistics_are_hidden(owner: Connection, acme: Connection) -> None:
    await owner.execute("ANALYZE homing.messages")
    assert await owner.fetchval("SELECT count(*) FROM pg_stats WHERE tablename = 'messages'") > 0
    assert await acme.fetchval("SELECT count(*) FROM pg_stats WHERE schemaname = 'homing'") == 0


async def test_a_login_that_is_a_member_of_a_tenant_s_role_is_restricted_too(
    url: str, owner: Connection
) -> None:
    await owner.execute(f"GRANT {ROLE} TO {LOGIN}")
    login = await _as(url, LOGIN)
    assert await _tenants_seen(login) == {"acme"}
    await login.close()


async def test_a_login_of_several_tenants_chooses_one_and_sees_none_before(
    url: str, owner: Connection
) -> None:
    await owner.execute(f"GRANT {ROLE}, {OTHER} TO {LOGIN}")
    login = await _as(url, LOGIN)
    with pytest.raises(asyncpg.PostgresError, match="several tenants"):
        await _tenants_seen(login)
    for role, tenant in ((ROLE, "acme"), (OTHER, "beta")):
        await login.execute(f"SET ROLE {role}")
        assert await _tenants_seen(login) == {tenant}
    await login.close()


async def test_a_renamed_role_stays_restricted(owner: Connection, acme: Connection) -> None:
    await owner.execute(f"ALTER ROLE {OTHER} RENAME TO {OTHER}_2")
    await owner.execute(f"SET ROLE {OTHER}_2")
    assert await _tenants_seen(owner) == {"beta"}
    await owner.execute("RESET ROLE")
    await owner.execute(f"ALTER ROLE {OTHER}_2 RENAME TO {OTHER}")


async def test_a_role_that_is_no_longer_a_tenant_s_sees_nothing(owner: Connection, acme: Connection) -> None:
    await owner.execute("SELECT homing.drop_tenant_role($1)", ROLE)
    for name in sorted(OWN):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await acme.fetch(f"SELECT * FROM homing.{name}")


async def test_a_role_that_cannot_be_restricted_is_refused(owner: Connection) -> None:
    for attribute in ("SUPERUSER", "BYPASSRLS"):
        await owner.execute(f"ALTER ROLE {LOGIN} {attribute}")
        with pytest.raises(asyncpg.PostgresError, match="cannot be confined"):
            await owner.execute("SELECT homing.create_tenant_role('acme', $1)", LOGIN)
        await owner.execute(f"ALTER ROLE {LOGIN} NO{attribute}")


async def test_the_owner_and_thus_homing_itself_sees_everything(owner: Connection) -> None:
    assert await _tenants_seen(owner) == {"acme", "beta"}
    assert await owner.fetchval("SELECT homing.callers_tenant()") is None
    rows = await owner.fetch("SELECT relname, relforcerowsecurity FROM pg_class WHERE relrowsecurity")
    assert rows
    assert not any(forced for _, forced in rows)


async def test_every_table_has_row_level_security(owner: Connection) -> None:
    """A table added by a later migration needs it as well."""
    without = await owner.fetch(
        "SELECT relname FROM pg_class"
        " WHERE relnamespace = 'homing'::regnamespace AND relkind = 'r' AND NOT relrowsecurity"
    )
    assert [name for (name,) in without] == []


async def _tenants_seen(connection: Connection) -> set[str]:
    seen = await connection.fetch(
        "SELECT tenant FROM homing.messages UNION SELECT tenant FROM homing.dead_letters"
        " UNION SELECT tenant FROM homing.queue_stats"
    )
    return {tenant for (tenant,) in seen}
