"""`homing db copy`: a store is copied to another one completely, even after interruptions."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import pytest

from homing import compose
from homing.core.errors import SchemaError
from homing.core.lifecycle.commands import CommandName
from homing.core.lifecycle.receipts import ReceiptEvent
from homing.core.notifications import Filter, Status
from homing.core.ports.stores import Backend, Entry, Retention
from homing.core.routing.breaker import Breaker
from homing.stores.mongo import MongoStore
from homing.stores.postgres import PostgresStore
from homing.stores.sqlite import SqliteStore
from homing.testing.builders import (
    DAY_MS,
    a_claim_request,
    a_notification,
    a_receipt,
    a_submission,
    dead,
    in_doubt,
    retry_in,
    sent,
)
from homing.testing.store_suite.harness import a_command, list_all, status_of, subscribe
from support.cli_driver import Cli
from support.mongo_server import PrivateMongo

R = TypeVar("R")
PARTS = (
    *("notifications", "attempts", "causes", "requests", "dedups", "receipts", "outbox"),
    *("sinks", "sink_events"),
    *("tallies", "roll_ups", "minute_roll_ups", "goals", "registry", "breakers"),
)
KEYED = a_submission(a_notification(dedup_key="once", dedup_window_ms=DAY_MS), key="k-1")
KNOWN, EARLY = a_receipt("m-0", ReceiptEvent.DELIVERED), a_receipt("m-later", ReceiptEvent.DELIVERED)


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


def in_store(store: Backend, work: Callable[[Backend], Awaitable[R]]) -> R:
    """Opens a store, runs a function with it, and closes it."""

    async def run() -> R:
        await store.open()
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


def make(folder: Path, number: int = 12) -> Path:
    """Fills a file with notifications of every status, and with all other kinds of data."""
    folder.mkdir(exist_ok=True)
    path = folder / "homing.db"
    in_store(SqliteStore(path), lambda store: _fill(store, number))
    return path


async def _fill(store: Backend, number: int) -> None:
    await store.migrate()
    await subscribe(store, "StatusChanged", "NotificationFailed")
    await store.accept([KEYED, a_submission(*(a_notification() for _ in range(number)))])
    claims = (await store.claim(a_claim_request())).claims
    await store.settle(
        [
            *(sent(claim, f"m-{position}") for position, claim in enumerate(claims[4:])),
            *(dead(claims[0]), dead(claims[1]), retry_in(claims[2], DAY_MS), in_doubt(claims[3], "m-doubt")),
        ]
    )
    [again] = [claims[1].id]
    await store.amend("default", [again], a_command(CommandName.RESEND, [again]))
    await store.accept([a_submission(a_notification(), tenant="other")])
    await store.receipt([KNOWN, EARLY, a_receipt("m-1", ReceiptEvent.OPEN)])
    await store.put([Entry(tenant="other", kind="template", key="hi", value={"body": "Hello"})], who="ada")
    await store.put_breaker("sendgrid", Breaker())


async def snapshot(store: Backend) -> dict[str, Any]:
    """Returns everything that can be read from a store."""
    whose = await store.tenants()
    items = {tenant: await list_all(store, tenant) for tenant in whose}
    return {
        "tenants": whose,
        "items": items,
        "histories": [await store.get(tenant, one.id) for tenant in whose for one in items[tenant]],
        "tallies": [await store.tallies(tenant) for tenant in (None, *whose)],
        "waiting": [await store.waiting(tenant) for tenant in whose],
        "groups": [await store.error_groups(tenant) for tenant in whose],
        "sums": await store.roll_ups(None, since_ms=DAY_MS),
        "minutes": await store.minute_roll_ups(None, since_ms=DAY_MS),
        "goals": await store.goal_roll_ups(None, since_ms=DAY_MS),
        "entries": [await store.list_entries(tenant, "template") for tenant in whose],
        "breakers": await store.breakers(),
        "sinks": await store.sinks(),
        "events": await store.outbox("sink", "relay", 1000, 1),
    }


def test_a_copy_contains_everything_in_the_file(cli: Cli, postgres_url: str) -> None:
    path = make(cli.folder)
    before = in_store(SqliteStore(path), snapshot)
    assert all(before.values())
    result = cli.ok("db", "copy", str(path), postgres_url, "--json")
    assert set(result.json["records"]) == set(PARTS)
    empty = {part for part, number in result.json["records"].items() if not number}
    assert empty == {"outbox"}, "of everything something, except events that an older release wrote"
    assert result.json["copied"] == sum(result.json["records"].values())
    assert in_store(PostgresStore(postgres_url), snapshot) == before


def test_the_copy_continues_where_the_file_stopped(cli: Cli, postgres_url: str) -> None:
    path = make(cli.folder)
    cli.ok("db", "copy", str(path), postgres_url)

    async def use(store: Backend) -> None:
        [answer] = await store.accept([KEYED])
        assert answer.duplicates == set(answer.ids), "an idempotency key is known"
        same = a_submission(a_notification(dedup_key="once", dedup_window_ms=DAY_MS))
        [answer] = await store.accept([same])
        assert answer.duplicates, "a dedup window is open"
        assert (await store.receipt([KNOWN])).unchanged == (KNOWN.event_id,), "an event is known"
        claims = (await store.claim(a_claim_request())).claims
        assert {claim.tenant for claim in claims} == {"default", "other"}
        await store.settle([sent(claims[0], "m-later")])
        assert await status_of(store, claims[0].id, claims[0].tenant) is Status.DELIVERED, "a kept one waited"
        new = a_notification()
        await store.accept([a_submission(new)])
        assert (await store.receipt([a_receipt("m-new")])).orphaned
        assert await status_of(store, new.id) is Status.PENDING
        assert await store.prune(Retention(delivered_ms=0, sent_ms=0, others_ms=0, keys_ms=0), 1000)

    in_store(PostgresStore(postgres_url), use)


@pytest.mark.slow
def test_a_killed_copy_continues_and_duplicates_nothing(cli: Cli, postgres_url: str) -> None:
    path = make(cli.folder, 1500)
    before = in_store(SqliteStore(path), snapshot)
    command = ("db", "copy", str(path), postgres_url, "--page", "20")
    there = 0
    for least in (200, 1700):
        there = _kill_after(cli, command, postgres_url, least)
        refused = cli("db", "check", "--store", postgres_url)
        assert refused.code == 4
        assert "an incomplete copy" in refused.err
    result = cli.ok(*command, "--json")
    assert f"resuming: {there:,} of" in result.err
    assert result.json["copied"] + there == sum(result.json["records"].values())
    assert in_store(PostgresStore(postgres_url), snapshot) == before
    again = cli.ok(*command, "--json")
    assert again.json["copied"] == 0


def _kill_after(cli: Cli, command: tuple[str, ...], url: str, least: int) -> int:
    """Kills the copy once it has this many records, and returns how many there are."""
    process = cli.start(*command)
    try:
        asyncio.run(_until_copied(process, url, least))
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == -signal.SIGKILL
    # The server may still be about to commit the last page.
    return asyncio.run(_at_rest(url))


async def _until_copied(process: subprocess.Popen[str], url: str, least: int) -> None:
    """Waits until this many records are copied. The copy is suspended while they are counted."""
    async with asyncio.timeout(240):
        while True:
            process.send_signal(signal.SIGSTOP)
            copied = await _copied(url)
            process.send_signal(signal.SIGCONT)
            assert process.poll() is None, process.communicate()
            if copied >= least:
                return
            await asyncio.sleep(0.005)


async def _copied(url: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        if not await connection.fetchval("SELECT to_regclass('homing.copied_parts') IS NOT NULL"):
            return 0
        return int(await connection.fetchval("SELECT coalesce(sum(number), 0) FROM homing.copied_parts"))
    finally:
        await connection.close()


async def _at_rest(url: str) -> int:
    connection = await asyncpg.connect(url)
    # Waits for the lock of a page that is being committed; there is no other writer.
    await connection.execute("BEGIN; LOCK TABLE homing.copied_parts IN EXCLUSIVE MODE; COMMIT")
    await connection.close()
    return await _copied(url)


def test_a_store_with_data_of_its_own_is_refused(cli: Cli, postgres_url: str) -> None:
    path = make(cli.folder)
    cli.ok("db", "migrate", "--store", postgres_url)
    mine = a_submission(a_notification())
    in_store(PostgresStore(postgres_url), lambda store: store.accept([mine]))
    result = cli("db", "copy", str(path), postgres_url)
    assert result.code == 4
    assert "already holds data" in result.err
    assert len(in_store(PostgresStore(postgres_url), list_all)) == 1


def test_a_store_whose_workers_run_is_refused(cli: Cli, postgres_url: str, mongo_url: str) -> None:
    path = make(cli.folder)
    stores: dict[str, Backend] = {postgres_url: PostgresStore(postgres_url), mongo_url: MongoStore(mongo_url)}
    for url, store in stores.items():
        cli.ok("db", "migrate", "--store", url)
        assert in_store(store, lambda opened: opened.lead("upkeep", "busy-1", DAY_MS))
        result = cli("db", "copy", str(path), url)
        assert result.code == 4
        assert "in use by busy-1. Stop its workers" in result.err


def test_a_partial_copy_of_another_file_is_refused(cli: Cli, postgres_url: str) -> None:
    path = make(cli.folder, 400)
    _kill_after(cli, ("db", "copy", str(path), postgres_url, "--page", "10"), postgres_url, 50)
    in_store(SqliteStore(path), lambda store: store.accept([a_submission(a_notification())]))
    result = cli("db", "copy", str(path), postgres_url)
    assert result.code == 4
    assert "the source has changed since" in result.err


def test_a_file_in_use_is_not_copied(cli: Cli, postgres_url: str) -> None:
    path = make(cli.folder)
    in_store(SqliteStore(path), lambda store: store.claim(a_claim_request(worker="busy-1")))
    result = cli("db", "copy", str(path), postgres_url)
    assert result.code == 4
    assert "in use by busy-1" in result.err
    assert "Stop all workers" in result.err


def test_a_lost_lease_is_copied_unchanged(cli: Cli, postgres_url: str) -> None:
    path = make(cli.folder)
    in_store(SqliteStore(path), lambda store: store.claim(a_claim_request(worker="gone")))
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE homing_notifications SET lease_until = 1 WHERE lease_until IS NOT NULL")
    connection.close()
    cli.ok("db", "copy", str(path), postgres_url)

    async def take_over(store: Backend) -> tuple[int, int]:
        sending = Filter(statuses=(Status.SENDING,))
        held = [await list_all(store, tenant, sending) for tenant in ("default", "other")]
        return sum(map(len, held)), len((await store.reclaim("w", 100, 60_000)).claims)

    held, lost = in_store(PostgresStore(postgres_url), take_over)
    assert held == lost > 0


def test_wrong_store_urls_are_named(cli: Cli, postgres_url: str) -> None:
    path = make(cli.folder)
    missing, memory, file = cli.many(
        ["db", "copy", "no-such.db", postgres_url],
        ["db", "copy", "memory:", postgres_url],
        ["db", "copy", str(path), "other.db"],
    )
    assert (missing.code, memory.code, file.code) == (4, 2, 2)
    assert "no-such.db does not exist" in missing.err
    assert "source: must be the path of a SQLite file, postgresql:// or mongodb://" in memory.err
    assert "target: must be postgresql://HOST/DATABASE, or mongodb://" in file.err
    assert not (cli.folder / "no-such.db").exists()


# MongoDB -------------------------------------------------------------------------------------------


def test_a_copy_to_mongodb_to_postgres_and_back_contains_everything(
    cli: Cli, mongo_server: PrivateMongo, mongo_url: str, postgres_url: str
) -> None:
    path = make(cli.folder)
    before = in_store(SqliteStore(path), snapshot)
    result = cli.ok("db", "copy", str(path), mongo_url, "--json", "--page", "5")
    empty = {part for part, number in result.json["records"].items() if not number}
    assert empty == {"outbox"}
    assert in_store(MongoStore(mongo_url), snapshot) == before
    back = mongo_server.database_url(f"homing_back_{os.getpid()}")
    first, second = (
        cli.ok("db", "copy", source, target, "--json", "--page", "5")
        for source, target in ((mongo_url, postgres_url), (postgres_url, back))
    )
    assert first.json["records"] == second.json["records"] == result.json["records"]
    assert in_store(PostgresStore(postgres_url), snapshot) == before
    assert in_store(MongoStore(back), snapshot) == before
    with mongo_server.client() as client:
        client.drop_database(back.rpartition("/")[2].partition("?")[0])


def test_a_copy_to_mongodb_continues_where_it_stopped_and_is_refused_until_it_is_complete(
    cli: Cli, mongo_url: str
) -> None:
    path = make(cli.folder)

    async def copy_some() -> None:
        def stop(done: int, part: str) -> None:
            if done >= 25:
                raise KeyboardInterrupt

        async with compose.build_copying(str(path), mongo_url, page=4) as copying:
            await copying.copy_remaining(await copying.begin(), on_progress=stop)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(copy_some())
    with pytest.raises(SchemaError, match="an incomplete copy"):
        in_store(MongoStore(mongo_url), snapshot)
    result = cli.ok("db", "copy", str(path), mongo_url, "--json")
    assert "resuming: 2" in result.err
    assert 0 < result.json["copied"] < sum(result.json["records"].values())
    assert in_store(MongoStore(mongo_url), snapshot) == in_store(SqliteStore(path), snapshot)
    other = make(cli.folder / "other", 3)
    refused = cli("db", "copy", str(other), mongo_url)
    assert refused.code == 4
    assert "already holds data" in refused.err


def test_a_source_without_the_schema_of_this_version_is_refused_with_what_to_do(
    cli: Cli, postgres_url: str, mongo_url: str
) -> None:
    result = cli("db", "copy", postgres_url, mongo_url)
    assert result.code == 4
    assert "Run `homing db migrate`" in result.err


def test_check_and_migrate_work_on_postgres_and_show_no_password(cli: Cli, postgres_url: str) -> None:
    scheme, _, rest = postgres_url.partition("://")
    user, _, place = rest.rpartition("@")
    url = f"{scheme}://{user.partition(':')[0]}:hush@{place}" if "@" in rest else postgres_url
    before, migrated, again, after, told = cli.many(
        ["db", "check", "--store", url],
        ["db", "migrate", "--store", url],
        ["db", "migrate", "--store", url],
        ["db", "check", "--store", url],
        ["db", "check", "--store", url, "--json"],
    )
    assert before.code == 4
    assert "`homing db migrate` applies 0001_initial" in before.out
    assert migrated.out.startswith("applied 0001_initial")
    assert "already at schema version" in again.out
    assert after.code == 0
    for name in ("server", "schema", "role", "clock"):
        assert f"✓ {name}" in after.out
    assert [check["ok"] for check in told.json["checks"]] == [True] * 12
    everything_said = "".join(r.out + r.err for r in (before, migrated, again, after, told))
    assert "hush" not in everything_said
    assert place.partition("?")[0] in everything_said
