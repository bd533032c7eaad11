"""`process`: one claim for all lanes, the most urgent lane first, at most `limit` notifications."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from homing import Delivery, Homing, Priority


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The SQL statements that SQLite runs, of all connections."""
    seen: list[str] = []
    connect = sqlite3.connect

    def traced(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **kwargs)
        connection.set_trace_callback(seen.append)
        return connection

    monkeypatch.setattr(sqlite3, "connect", traced)
    return seen


def begun(statements: list[str]) -> int:
    """Returns the number of write transactions."""
    return sum(statement.strip().upper().startswith("BEGIN IMMEDIATE") for statement in statements)


async def test_one_transaction_claims_all_lanes_if_nothing_is_due(
    tmp_path: Path, statements: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = []
    async with Homing(tmp_path / "homing.db", providers={"any": lambda delivery: None}) as homing:
        claim = homing._backend.claim

        async def counted(request: Any) -> Any:
            claims.append(request)
            return await claim(request)

        monkeypatch.setattr(homing._backend, "claim", counted)
        await homing.process()  # the first one also reads breakers and rules
        claims.clear()
        statements.clear()
        await homing.process()
        assert [len(request.lanes) for request in claims] == [18]
        assert 1 <= begun(statements) <= 3  # reclaim, claim, and the lease of events


async def test_the_most_urgent_lane_is_served_first_and_the_limit_holds() -> None:
    order: list[str] = []

    def record(delivery: Delivery) -> None:
        order.append(f"{delivery.channel}:{delivery.priority}")

    async with Homing("memory:", providers={"any": record}) as homing:
        for number in range(3):
            await homing.send(f"a{number}@example.org", channel="email", body="x")
            await homing.send("+14155550123", channel="sms", body="x", priority=Priority.CRITICAL)
        assert (await homing.process(4)).processed == 4
        assert sorted(order) == ["email:medium", "sms:critical", "sms:critical", "sms:critical"]
        assert (await homing.process(4)).processed == 2
        assert (await homing.process(4)).processed == 0


async def test_more_than_fits_into_a_lane_is_processed_in_several_claims() -> None:
    async with Homing("memory:", providers={"any": lambda delivery: None}, slots={"standard": 3}) as homing:
        for number in range(10):
            await homing.send(f"a{number}@example.org", channel="email", body="x")
        assert (await homing.process(8)).succeeded == 8
        assert (await homing.process()).succeeded == 2
