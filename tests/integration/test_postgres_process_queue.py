"""`homing.process_notification_queue()`: waits for the workers and returns what they have processed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from homing import Homing, Outcome, OutcomeKind
from homing.core.ports.providers import Delivery
from homing.core.routing.breaker import Phase

ENQUEUE = "SELECT homing.enqueue('email', $1, '{\"body\": \"x\"}', tenant => $2)"
PROCESS = "SELECT * FROM homing.process_notification_queue()"


class Mailbox:
    """Accepts mail, except that to `busy` and `nobody`, and keeps that to `slow` until it is released."""

    def __init__(self) -> None:
        self.released = asyncio.Event()

    async def __call__(self, delivery: Delivery) -> Outcome:
        match delivery.address.partition("@")[0]:
            case "busy":
                return Outcome(OutcomeKind.TRANSIENT, error_code="503")
            case "nobody":
                return Outcome(OutcomeKind.BAD_RECIPIENT, error_code="550")
            case "slow":
                await self.released.wait()
        return Outcome(OutcomeKind.ACCEPTED)


class Client:
    """A session of an SQL user, and the notices and warnings it got."""

    def __init__(self, connection: asyncpg.Connection[Any]) -> None:
        self.connection = connection
        self.notices: list[str] = []
        connection.add_log_listener(lambda _, message: self.notices.append(str(message)))

    async def enqueue(self, *names: str, tenant: str = "default") -> None:
        for name in names:
            await self.connection.fetchval(ENQUEUE, f'{{"email": "{name}@example.org"}}', tenant)

    async def process(self, call: str = PROCESS) -> tuple[int, ...]:
        return tuple(await self.connection.fetchrow(call) or ())


@pytest.fixture
async def mailbox() -> Mailbox:
    return Mailbox()


@pytest.fixture
async def homing(postgres_url: str, mailbox: Mailbox) -> AsyncIterator[Homing]:
    async with Homing(postgres_url, providers={"mail": mailbox}, preset="fixed", worker=True) as opened:
        async with asyncio.timeout(60):
            while not await opened.workers():  # noqa: ASYNC110 (another task sends the heartbeat)
                await asyncio.sleep(0.01)
        yield opened


@pytest.fixture
async def psql(postgres_url: str, homing: Homing) -> AsyncIterator[Client]:
    connection = await asyncpg.connect(postgres_url, server_settings={"application_name": "psql"})
    yield Client(connection)
    await connection.close()


@pytest.mark.source("003", "134-144")
async def test_it_returns_what_was_processed_since_the_previous_call(psql: Client) -> None:
    assert await psql.process() == (0, 0, 0, 0)
    await psql.enqueue("a", "b", "c", "busy", "nobody")
    await psql.connection.fetchval("SELECT homing.enqueue('pigeon', '{}')")  # becomes a dead letter
    assert await psql.process() == (6, 3, 1, 2)
    assert await psql.process() == (0, 0, 0, 0)
    assert psql.notices == []


async def test_each_caller_has_counts_of_its_own(psql: Client, postgres_url: str) -> None:
    await psql.enqueue("a")
    assert await psql.process() == (1, 1, 0, 0)
    cron = Client(await asyncpg.connect(postgres_url, server_settings={"application_name": "pg_cron"}))
    assert await cron.process() == (1, 1, 0, 0)
    assert await cron.process() == (0, 0, 0, 0)
    await cron.connection.close()


async def test_simultaneous_calls_do_not_return_the_same_counts(psql: Client, postgres_url: str) -> None:
    await psql.enqueue("a", "b")
    other = Client(await asyncpg.connect(postgres_url, server_settings={"application_name": "psql"}))
    try:
        async with psql.connection.transaction():
            assert await psql.process() == (2, 2, 0, 0)
            second = asyncio.create_task(other.process())
            waits = "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted AND pid = $1)"
            async with asyncio.timeout(60):
                while not await psql.connection.fetchval(waits, other.connection.get_server_pid()):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        assert await second == (0, 0, 0, 0)
    finally:
        await other.connection.close()


async def test_many_names_of_a_caller_do_not_fill_the_table(psql: Client) -> None:
    await psql.connection.execute(
        "INSERT INTO homing.process_calls SELECT session_user, n, homing.now_ms() - n, 0, 0, 0, 0"
        " FROM generate_series(1, 200) AS n"
    )
    await psql.process()
    kept = await psql.connection.fetch("SELECT name FROM homing.process_calls")
    assert {name for (name,) in kept} == {"psql", *(str(n) for n in range(1, 100))}


async def test_a_tenant_gets_the_counts_of_its_own(psql: Client) -> None:
    await psql.connection.execute("SELECT homing.create_tenant_role('acme', 'acme_role')")
    try:
        await psql.enqueue("a", "b")
        await psql.enqueue("c", tenant="acme")
        await psql.connection.execute("SET ROLE acme_role")
        assert await psql.process() == (1, 1, 0, 0)
        await psql.connection.execute("RESET ROLE")
        assert await psql.process() == (3, 3, 0, 0)
    finally:
        await psql.connection.execute("SELECT homing.drop_tenant_role('acme_role'); DROP ROLE acme_role")


async def test_it_waits_no_longer_than_the_caller_wants(psql: Client, mailbox: Mailbox) -> None:
    await psql.enqueue("slow", "a")
    briefly = "SELECT * FROM homing.process_notification_queue(wait => '400 ms')"
    processed, succeeded, _, _ = await psql.process(briefly)
    assert (processed, succeeded) in ((0, 0), (1, 1)), "a machine may need longer than that for the other one"
    mailbox.released.set()
    assert processed + (await psql.process())[0] == 2


async def test_it_says_what_an_open_breaker_holds_back(psql: Client, homing: Homing) -> None:
    await homing.force_breaker("mail", Phase.OPEN, who="ada")
    await psql.enqueue("a", "b")
    assert await psql.process() == (0, 0, 0, 0)
    assert any("2 due notifications are held by the breaker of mail" in notice for notice in psql.notices)


async def test_it_warns_if_no_worker_runs(psql: Client, homing: Homing) -> None:
    await homing.stop_worker()
    await psql.enqueue("a")
    assert await psql.process() == (0, 0, 0, 0)
    await homing.process()  # which sends a heartbeat, but does not go on
    assert await psql.process() == (1, 1, 0, 0)
    assert sum("no worker runs" in notice for notice in psql.notices) == 2
