"""Extreme times: everything accepted can be read, and no stored time breaks a page."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from homing import ConfigError, Homing, InvalidRequest, PolicyPatch, Rejection, Rule, SendResult, Status
from homing.core.lifecycle.commands import CommandName
from homing.core.notifications import Filter
from homing.core.ports.stores import Entry
from homing.core.times import DAY_MS, LONGEST_MS
from homing.engine.operations.policies import EVERY_TENANT

MAIL: dict[str, Any] = {"recipient": "ada@example.org", "channel": "email", "content": {"body": "x"}}
LAST = datetime.max.replace(microsecond=0, tzinfo=timezone(timedelta(hours=-12)))  # in the year 10000
FIRST = datetime.min.replace(tzinfo=timezone(timedelta(hours=12)))  # in the year 0
ABSURD = (2**63 - 1, -(2**63), 253_402_343_999_000, -62_135_640_000_000)
OFFSETS = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
TIMES = st.datetimes(timezones=OFFSETS) | st.datetimes(
    datetime(1970, 1, 1), datetime(2130, 1, 1), timezones=OFFSETS
)

Rewrite = Callable[..., Awaitable[None]]


def took(delivery: object) -> None:
    """A provider that accepts everything."""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "homing.db")
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
async def homing(url: str) -> AsyncIterator[Homing]:
    async with Homing(url, providers={"mail": took}) as opened:
        yield opened


@pytest.fixture
def rewrite(url: str) -> Rewrite:
    """Changes the columns of one row without Homing."""

    async def run(id: str, **columns: int) -> None:
        changed = ", ".join(f"{name} = {value}" for name, value in columns.items())
        if url.startswith("postgresql"):
            connection = await asyncpg.connect(url)
            row = f"SELECT seq FROM homing.messages WHERE id = '{id}'"
            await connection.execute(f"UPDATE homing.live SET {changed} WHERE seq = ({row})")
            await connection.close()
            return
        with sqlite3.connect(url) as own:
            own.execute(f"UPDATE homing_notifications SET {changed} WHERE id = '{id}'")
        own.close()

    return run


async def read_all(homing: Homing, ids: tuple[str, ...] = ()) -> None:
    """Reads the notification in every possible way, and encodes it as JSON."""
    page = await homing.list()
    for found in (page, await homing.list(Filter(created_from=FIRST, created_until=LAST))):
        msgspec.json.encode(found)
    for id in ids or [one.id for one in page.items]:
        explained = await homing.explain(id)
        msgspec.json.encode(explained.history)
        assert explained.next_step
        msgspec.json.encode(await homing.retry_info(id, delay=timedelta(minutes=1)))
    msgspec.json.encode(await homing.select_pending())
    msgspec.json.encode(await homing.select_pending(delay=timedelta(minutes=1)))
    msgspec.json.encode(await homing.waiting())
    msgspec.json.encode(await homing.health_metrics())
    msgspec.json.encode(await homing.roll_ups())


@pytest.mark.parametrize("name", ["send_at", "expires_at"])
@pytest.mark.parametrize(
    "at", [LAST, FIRST, datetime.max.replace(tzinfo=UTC), datetime(1969, 1, 1, tzinfo=UTC)]
)
async def test_a_time_outside_the_limits_is_refused_by_name_and_nothing_is_stored(
    homing: Homing, name: str, at: datetime
) -> None:
    wire = {"send_at": "sendAt", "expires_at": "expiresAt"}[name]
    with pytest.raises(InvalidRequest) as caught:
        await homing.send("ada@example.org", channel="email", body="x", **dict[str, Any]({name: at}))
    assert caught.value.field == wire
    results = [one async for one in homing.send_many([MAIL, {**MAIL, name: at}, MAIL])]
    assert [type(one) for one in results] == [SendResult, Rejection, SendResult]
    assert isinstance(results[1], Rejection)
    assert (results[1].index, results[1].field) == (1, wire)
    assert len((await homing.list()).items) == 2
    await read_all(homing)


@pytest.mark.parametrize("name", ["send_at", "expires_at"])
async def test_a_duration_outside_the_limits_is_refused_by_name(homing: Homing, name: str) -> None:
    for delay in (timedelta.max, timedelta(days=36_501), timedelta(days=-1)):
        with pytest.raises(InvalidRequest, match=r"^(sendAt|expiresAt): "):
            await homing.send("ada@example.org", channel="email", body="x", **dict[str, Any]({name: delay}))
    assert (await homing.list()).items == ()


async def test_the_farthest_time_is_accepted_rescheduled_and_read(homing: Homing) -> None:
    sent = await homing.send(
        "ada@example.org", channel="email", body="x", send_at=timedelta(milliseconds=LONGEST_MS)
    )
    await homing.reschedule(sent.id, timedelta(milliseconds=LONGEST_MS))
    await read_all(homing, (sent.id,))
    for delay in (timedelta(milliseconds=LONGEST_MS + 1), timedelta.max, timedelta(-1)):
        with pytest.raises(InvalidRequest, match=r"^delay: "):
            await homing.reschedule(sent.id, delay)
    await homing.retry(sent.id)
    assert (await homing.process()).succeeded == 1


@pytest.mark.parametrize("at", ABSURD)
async def test_a_row_with_an_absurd_time_breaks_no_page(homing: Homing, rewrite: Rewrite, at: int) -> None:
    sent = [await homing.send(f"u{n}@example.org", channel="email", body="x") for n in range(3)]
    times = ("updated_at", "due_at", "deadline_at", "expires_at", "last_attempt_at", "sent_at", "failed_at")
    await rewrite(sent[1].id, **dict.fromkeys(times, at))
    await read_all(homing, tuple(one.id for one in sent))
    assert [one async for one in homing.bulk(CommandName.CANCEL, Filter(), who="me", dry_run=True)]
    await homing.retry(sent[1].id)
    await homing.process()
    assert {(await homing.get(one.id)).status for one in (sent[0], sent[2])} == {Status.SENT}
    await read_all(homing)


async def test_a_row_whose_age_exceeds_64_bits_affects_no_other(homing: Homing, rewrite: Rewrite) -> None:
    sent = [await homing.send(f"u{n}@example.org", channel="email", body="x") for n in range(3)]
    await rewrite(sent[1].id, aged_from=2**63 - 1)
    await homing.reschedule(sent[1].id, timedelta(hours=1))
    assert (await homing.process()).succeeded == 2
    await read_all(homing)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)  # one store for all examples
@given(send_at=TIMES | st.none(), expires_at=TIMES | st.none())
@example(send_at=LAST, expires_at=None)
@example(send_at=None, expires_at=LAST)
@example(send_at=FIRST, expires_at=None)
def test_everything_accepted_can_be_listed_explained_and_exported(
    tmp_path: Path, send_at: datetime | None, expires_at: datetime | None
) -> None:
    async def run() -> None:
        async with Homing(tmp_path / "homing.db", providers={"mail": took}) as homing:
            try:
                sent = await homing.send(
                    "ada@example.org", channel="email", body="x", send_at=send_at, expires_at=expires_at
                )
            except InvalidRequest as error:
                assert error.field in ("sendAt", "expiresAt")  # noqa: PT017
                return
            await read_all(homing, (sent.id,))
            found = await homing.get(sent.id)
            for given_, kept in ((send_at, found.send_at), (expires_at, found.expires_at)):
                assert (given_ is None) == (kept is None)
                if given_ is not None and kept is not None:
                    assert timedelta(0) <= given_ - kept < timedelta(milliseconds=1)

    asyncio.run(run())


# Rules ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["timeout_ms", "max_age_ms", "base_ms", "cap_ms", "jitter_ms"])
async def test_a_rule_with_an_absurd_duration_is_refused(homing: Homing, field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        await homing.policies.set(
            Rule(name="r", policy=PolicyPatch(**dict[str, Any]({field: 2**63}))), who="me"
        )
    await homing.send("ada@example.org", channel="email", body="x")
    assert (await homing.process()).succeeded == 1


async def test_a_stored_rule_with_an_absurd_duration_prevents_neither_claims_nor_its_removal(
    homing: Homing, url: str
) -> None:
    old = {"name": "old", "policy": {"timeout_ms": 2**63 - 1, "max_age_ms": 2**63 - 1}}
    entry = Entry(tenant=EVERY_TENANT, kind="policy", key="old", value={"rule": old})
    assert await homing._backend.put([entry], who="an older release") is not None
    async with Homing(url, providers={"mail": took}) as other:
        await other.policies.refresh()
        (rule,) = other.policies.book.rules
        assert (rule.policy.timeout_ms, rule.policy.max_age_ms) == (DAY_MS, LONGEST_MS)
        sent = await other.send("ada@example.org", channel="email", body="x")
        assert (await other.process()).succeeded == 1
        await read_all(other, (sent.id,))
        await other.policies.remove("old", who="me")
        assert other.policies.book.rules == ()
