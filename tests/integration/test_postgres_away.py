"""A PostgreSQL server that hangs, refuses logins or accepts no writes is away: requests are spooled."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from homing import Delivery, Homing, NotFound, Status, StoreUnavailable, SyncHoming
from homing.stores.postgres import PostgresStore, connection
from support.event_loops import LoopKind
from support.postgres_servers import skip_if_missing
from support.private_postgres import PrivatePostgres

MAIL: dict[str, Any] = {"channel": "email", "body": "x"}
TO = "ada@example.org"


@pytest.fixture(scope="module")
def server() -> Iterator[PrivatePostgres]:
    """A server with a role that needs a password, and a database of this role."""
    with skip_if_missing(), PrivatePostgres() as server:
        [(rules,)] = server.query("SHOW hba_file")
        path = Path(rules)
        path.write_text(f"host all app 127.0.0.1/32 scram-sha-256\n{path.read_text()}")
        server.query("CREATE ROLE app LOGIN PASSWORD 'right'")
        server.query("CREATE DATABASE app OWNER app")
        server.query("SELECT pg_reload_conf()")
        yield server


@pytest.fixture
def url(server: PrivatePostgres) -> str:
    return f"postgresql://app:right@127.0.0.1:{server.port}/app"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transactions count as slow early, so that the tests are short."""
    monkeypatch.setattr(connection, "_SLOW_S", 0.2)
    monkeypatch.setattr(connection, "_WATCH_INTERVAL_S", 0.05)


def _took(delivery: Delivery) -> None:
    """Accepts everything."""


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


_AWAY = {
    "a read-only server": (
        "ALTER DATABASE app SET default_transaction_read_only = on",
        "ALTER DATABASE app RESET default_transaction_read_only",
        "Check the user's grants, or whether it is a standby",
    ),
    "another password": (
        "ALTER ROLE app PASSWORD 'other'",
        "ALTER ROLE app PASSWORD 'right'",
        "rejected the login; check the user, password and database",
    ),
    "a denied login": (
        "ALTER ROLE app NOLOGIN",
        "ALTER ROLE app LOGIN",
        "rejected the login; check the user, password and database",
    ),
    "a database without connections": (
        "ALTER DATABASE app ALLOW_CONNECTIONS false",
        "ALTER DATABASE app ALLOW_CONNECTIONS true",
        "is not currently accepting connections",
    ),
    "a missing database": (
        "ALTER DATABASE app RENAME TO renamed",
        "ALTER DATABASE renamed RENAME TO app",
        "rejected the login; check the user, password and database",
    ),
    "too many connections": (
        "ALTER ROLE app CONNECTION LIMIT 0",
        "ALTER ROLE app CONNECTION LIMIT -1",
        "too many connections for role",
    ),
}
"""How a server turns a client away: what causes it, what ends it, and what the error says."""


async def test_one_process_survives_every_way_in_which_a_server_turns_it_away(
    server: PrivatePostgres, url: str, tmp_path: Path
) -> None:
    """The worker waits and goes on, and what was sent meanwhile is spooled and then delivered."""
    settings: dict[str, Any] = {"providers": {"mail": _took}, "spool": str(tmp_path / "spool.jsonl")}
    async with Homing(PostgresStore(url), worker=True, **settings) as homing:
        for name, (cause, remedy, text) in _AWAY.items():
            await homing.send(TO, **MAIL)
            await _apply(server, cause)
            with pytest.raises(StoreUnavailable, match=text):
                await homing.send(TO, **MAIL)
            spooled = await homing.send(TO, if_unavailable="spool", **MAIL)
            assert spooled.status == "spooled", name
            await _apply(server, remedy)
            await _until(lambda: _works(homing))  # from then on, the spool is moved to the store
            await _until(partial(_is_sent, homing, spooled.id))


async def _apply(server: PrivatePostgres, statement: str) -> None:
    """Changes the role or the database, and ends its sessions. Renaming needs a moment without sessions."""
    async with asyncio.timeout(60):
        while True:
            server.end_sessions()
            try:
                server.query(statement)
                break
            except psycopg.errors.ObjectInUse:
                await asyncio.sleep(0)
    server.end_sessions()


async def _works(homing: Homing) -> bool:
    try:
        await homing.send(TO, **MAIL)
    except StoreUnavailable:
        return False
    return True


async def _is_sent(homing: Homing, id: str) -> bool:
    try:
        return (await homing.get(id)).status is Status.SENT
    except NotFound:
        return False


# A server that hangs ---------------------------------------------------------------------------------------


async def test_a_send_to_a_server_that_hangs_ends_and_is_spooled_and_sent_once(
    server: PrivatePostgres, url: str, tmp_path: Path
) -> None:
    """The transactions that hung may be committed later, although their callers got an error."""
    bodies: Counter[str | None] = Counter()

    def count(delivery: Delivery) -> None:
        bodies[delivery.content.body] += 1

    settings: dict[str, Any] = {"providers": {"mail": count}, "spool": str(tmp_path / "spool.jsonl")}
    async with Homing(PostgresStore(url), store_timeout_ms=300, **settings) as homing:
        await homing.send(TO, channel="email", body="before")
        server.freeze()
        try:
            with pytest.raises(StoreUnavailable, match="store_timeout_ms"):
                await homing.send(TO, channel="email", body="repeated", idempotency_key=str(tmp_path))
            with pytest.raises(StoreUnavailable):
                async for _ in homing.send_many([_request("one of many")]):
                    pass
            spooled = await asyncio.gather(
                *(
                    homing.send(TO, channel="email", body=f"spooled {number}", if_unavailable="spool")
                    for number in range(20)
                )
            )
            assert {one.status for one in spooled} == {"spooled"}
        finally:
            server.thaw()
        await _until(lambda: _works(homing))
        await homing.send(TO, channel="email", body="repeated", idempotency_key=str(tmp_path))
        await homing.process()
        wanted = {"before", "repeated", *(f"spooled {number}" for number in range(20))}
        assert {body: bodies[body] for body in wanted} == dict.fromkeys(wanted, 1)
        assert bodies["one of many"] <= 1


def _request(body: str) -> dict[str, Any]:
    return {"recipient": TO, "channel": "email", "content": {"body": body}}


def test_a_synchronous_program_is_not_held_up_either(
    server: PrivatePostgres, url: str, loop_kind: LoopKind
) -> None:
    with SyncHoming(PostgresStore(url), providers={"mail": _took}, store_timeout_ms=300) as homing:
        homing.send(TO, **MAIL)
        server.freeze()
        try:
            with pytest.raises(StoreUnavailable, match="store_timeout_ms"):
                homing.send(TO, **MAIL)
        finally:
            server.thaw()
