"""Requests that other programs write in SQL: taken once, and never blocking the writer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from homing import Homing, Status
from homing.core.notifications import Reason
from homing.core.ports.stores import AcceptedEntry, Inbox
from homing.testing.builders import a_notification, a_submission

MAIL = 'channel => \'email\', recipient => \'{"email": "a@example.org"}\', content => \'{"body": "x"}\''


def quiet(delivery: object) -> None:
    """A provider that accepts everything."""


@pytest.fixture
async def homing(postgres_url: str) -> AsyncIterator[Homing]:
    async with Homing(postgres_url, providers={"mail": quiet}) as opened:
        yield opened


@pytest.fixture
async def db(postgres_url: str, homing: Homing) -> AsyncIterator[asyncpg.Connection[Any]]:
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


def inbox_of(homing: Homing) -> Inbox:
    backend = homing._backend
    assert isinstance(backend, Inbox)
    return backend


async def test_a_request_in_sql_is_sent_under_its_returned_id(
    homing: Homing, db: asyncpg.Connection[Any]
) -> None:
    id_ = await db.fetchval(f"SELECT homing.enqueue({MAIL}, type => 'order', metadata => '{{\"n\": 1}}')")
    assert (await homing.process()).succeeded == 1
    sent = await homing.get(str(id_))
    assert (sent.status, sent.type, sent.metadata) == (Status.SENT, "order", {"n": 1})


async def test_several_channels_become_one_batch(homing: Homing, db: asyncpg.Connection[Any]) -> None:
    recipient = '{"email": "a@example.org", "deviceToken": "t"}'
    id_ = await db.fetchval("SELECT homing.enqueue('both', $1, $2)", recipient, '{"body": "x"}')
    assert (await homing.process()).succeeded == 2
    page = await homing.list()
    assert {one.batch_id for one in page.items} == {str(id_)}


async def test_a_rolled_back_request_is_not_sent(homing: Homing, db: asyncpg.Connection[Any]) -> None:
    transaction = db.transaction()
    await transaction.start()
    await db.execute(f"SELECT homing.enqueue({MAIL})")
    await transaction.rollback()
    assert (await homing.process()).processed == 0


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ("'email', '{}', '{\"body\": \"x\"}'", "recipient"),
        ("'email', '[]', '{\"body\": \"x\"}'", "recipient"),
        ('\'fax\', \'{"phone": "+1"}\', \'{"body": "x"}\'', "channel"),
        ("'email', '{\"email\": \"a@example.org\"}'", "content"),
        ("NULL, NULL", "content"),
        (f"{MAIL}, type => 'otp'", "synchronous"),
        (f"{MAIL}, max_retries => -5", "maxAttempts"),
    ],
)
async def test_an_unreadable_request_becomes_a_dead_letter_with_the_reason(
    homing: Homing, db: asyncpg.Connection[Any], arguments: str, field: str
) -> None:
    id_ = await db.fetchval(f"SELECT homing.enqueue({arguments})")
    await db.fetchval(f"SELECT homing.enqueue({MAIL})")
    assert (await homing.process()).succeeded == 1
    dead = await homing.get(str(id_))
    assert (dead.status, dead.reason) == (Status.FAILED, Reason.BAD_CONTENT)
    assert field in (dead.last_error or "")
    history = await homing.history(str(id_))
    assert [(cause.kind, cause.name) for cause in history.causes] == [("guard", "refused")]
    assert (await db.fetchval("SELECT count(*) FROM homing.inbox")) == 0


async def test_a_key_with_another_body_becomes_a_dead_letter(
    homing: Homing, db: asyncpg.Connection[Any]
) -> None:
    first = await db.fetchval(f"SELECT homing.enqueue({MAIL}, idempotency_key => 'k')")
    other = await db.fetchval(f"SELECT homing.enqueue({MAIL}, idempotency_key => 'k', type => 'other')")
    again = await db.fetchval(f"SELECT homing.enqueue({MAIL}, idempotency_key => 'k')")
    assert (await homing.process()).succeeded == 1
    assert (await homing.get(str(first))).status is Status.SENT
    assert "idempotencyKey" in ((await homing.get(str(other))).last_error or "")
    assert await db.fetchval("SELECT count(*) FROM homing.messages WHERE id = $1", again) == 0


async def test_a_repeat_that_is_no_longer_valid_stores_nothing(
    postgres_url: str, homing: Homing, db: asyncpg.Connection[Any]
) -> None:
    request = f"SELECT homing.enqueue({MAIL}, idempotency_key => 'k', provider => 'mail')"
    first = await db.fetchval(request)
    assert (await homing.process()).succeeded == 1
    async with Homing(postgres_url, providers={"post": quiet}) as without_mail:
        again = await db.fetchval(request)
        other = await db.fetchval(request.replace("'k'", "'k', type => 'other'"))
        assert (await without_mail.process()).succeeded == 0
    assert (await homing.get(str(first))).status is Status.SENT
    assert "different request" in ((await homing.get(str(other))).last_error or "")
    assert await db.fetchval("SELECT count(*) FROM homing.messages WHERE id = $1", again) == 0
    assert await db.fetchval("SELECT count(*) FROM homing.inbox") == 0


async def test_a_broken_schema_never_fails_the_writer_s_statement(
    homing: Homing, db: asyncpg.Connection[Any]
) -> None:
    warnings: list[str] = []
    db.add_log_listener(lambda _, message: warnings.append(str(message)))
    await db.execute("ALTER TABLE homing.inbox RENAME TO elsewhere")
    assert await db.fetchval(f"SELECT homing.enqueue({MAIL})") is None
    assert "was not taken" in warnings[0]


async def test_two_workers_take_an_entry_only_once(homing: Homing, db: asyncpg.Connection[Any]) -> None:
    """The first one's lease expires while it is busy, the second takes over, and the first is too late."""
    inbox = inbox_of(homing)
    await db.execute(f"SELECT homing.enqueue({MAIL})")
    (slow,) = await inbox.take_inbox(10, 0)
    (quick,) = await inbox.take_inbox(10, 60_000)
    assert slow.number == quick.number
    first, second = (AcceptedEntry(slow, a_submission(a_notification())) for _ in range(2))
    assert await inbox.accept_inbox([second]) == 1
    assert await inbox.accept_inbox([first]) == 0
    assert await db.fetchval("SELECT count(*) FROM homing.messages") == 1


async def test_a_lease_of_an_entry_from_the_future_is_void(
    homing: Homing, db: asyncpg.Connection[Any]
) -> None:
    """The clock was set back by a day after the entry was leased."""
    inbox = inbox_of(homing)
    await db.execute(f"SELECT homing.enqueue({MAIL})")
    (leased,) = await inbox.take_inbox(10, 60_000)
    assert await inbox.take_inbox(10, 60_000) == ()
    await db.execute("UPDATE homing.inbox SET lease_until = lease_until + 86400000")
    (again,) = await inbox.take_inbox(10, 60_000)
    assert again.number == leased.number


async def test_entries_are_taken_by_one_worker_at_a_time(homing: Homing, db: asyncpg.Connection[Any]) -> None:
    inbox = inbox_of(homing)
    await db.execute(f"SELECT homing.enqueue({MAIL}) FROM generate_series(1, 40)")
    taken = await asyncio.gather(*(inbox.take_inbox(10, 60_000) for _ in range(8)))
    numbers = [entry.number for one in taken for entry in one]
    assert len(numbers) == len(set(numbers)) == 40


async def test_a_command_for_an_unknown_notification_is_refused_at_once(
    homing: Homing, db: asyncpg.Connection[Any]
) -> None:
    with pytest.raises(asyncpg.RaiseError, match="there is no notification"):
        await db.execute("SELECT homing.retry_now('018f0000-0000-7000-8000-000000000000')")


async def test_an_impossible_command_changes_nothing(homing: Homing, db: asyncpg.Connection[Any]) -> None:
    sent = await homing.send("a@example.org", channel="email", body="x")
    await homing.process()
    await db.execute("SELECT homing.acknowledge($1, 'ann')", sent.id)
    await homing.process()
    assert (await homing.get(sent.id)).acknowledged_at is None
    assert await db.fetchval("SELECT count(*) FROM homing.inbox") == 0


async def test_a_running_worker_takes_new_entries(postgres_url: str) -> None:
    sent = asyncio.Event()

    def landed(delivery: object) -> None:
        sent.set()

    async with Homing(postgres_url, providers={"mail": landed}, worker=True) as homing:
        connection = await asyncpg.connect(postgres_url)
        id_ = await connection.fetchval(f"SELECT homing.enqueue({MAIL})")
        await connection.close()
        async with asyncio.timeout(60):
            await sent.wait()
        assert (await homing.wait(str(id_), timeout_ms=60_000)).status is Status.SENT


@pytest.mark.parametrize(
    ("extra", "field"),
    [
        ("send_at => '9999-12-31T23:59:59-12:00'", "sendAt"),
        ("expires_at => '9999-12-31T23:59:59-12:00'", "expiresAt"),
    ],
)
async def test_a_time_outside_the_limits_becomes_a_dead_letter_that_names_it(
    homing: Homing, db: asyncpg.Connection[Any], extra: str, field: str
) -> None:
    bad = await db.fetchval(f"SELECT homing.enqueue({MAIL}, {extra})")
    good = await db.fetchval(f"SELECT homing.enqueue({MAIL})")
    assert (await homing.process()).succeeded == 1
    assert (await homing.get(str(good))).status is Status.SENT
    dead = await homing.get(str(bad))
    assert (dead.status, dead.reason) == (Status.FAILED, Reason.BAD_CONTENT)
    assert (dead.last_error or "").startswith(f"{field}: ")
    assert len((await homing.list()).items) == 2


async def test_excessively_nested_json_delays_no_other_entry(
    homing: Homing, db: asyncpg.Connection[Any]
) -> None:
    deep = "[" * 3000 + "]" * 3000
    await db.fetchval(f"SELECT homing.enqueue({MAIL}, metadata => $1)", f'{{"k": {deep}}}')
    good = await db.fetchval(f"SELECT homing.enqueue({MAIL})")
    await homing.process()
    assert (await homing.get(str(good))).status is Status.SENT
    assert await db.fetchval("SELECT count(*) FROM homing.inbox") == 0
