"""Requests that other programs write in SQL: taken once, and never blocking the writer."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from homing import Homing, Status
from homing.core.notifications import Channel, OutcomeKind, Reason
from homing.core.ports.stores import AcceptedEntry, Inbox, InboxEntryKind
from homing.core.retry.policy import Backoff, PolicyPatch, Rule
from homing.engine.provider_roster import Listed
from homing.providers.local.function import FunctionProvider
from homing.providers.local.scripted import ScriptedProvider
from homing.telemetry.metrics import Metrics
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


async def test_the_overview_of_a_run_counts_requests_in_sql_unless_notifications_are_chosen(
    homing: Homing, db: asyncpg.Connection[Any]
) -> None:
    sent = await homing.send("a@example.org", channel="email", body="x")
    await db.fetchval(f"SELECT homing.enqueue({MAIL})")
    every, chosen = await homing.queue_overview(), await homing.queue_overview(ids=[sent.id])
    assert (every.found, every.in_inbox) == (2, 1)
    assert (chosen.found, chosen.in_inbox) == (1, 0)


async def test_the_overview_of_a_tenant_counts_its_own_requests_in_sql_and_no_commands(
    homing: Homing, db: asyncpg.Connection[Any]
) -> None:
    for tenant in ("default", "acme", "acme"):
        await db.fetchval(f"SELECT homing.enqueue({MAIL}, tenant => $1)", tenant)
    [unwanted, *_] = await db.fetch("SELECT id FROM homing.inbox WHERE tenant = 'acme'")
    await db.execute("SELECT homing.move_to_dead_letter($1, 'not wanted')", unwanted["id"])
    assert await db.fetchval("SELECT count(*) FROM homing.inbox") == 4
    found = {tenant: await homing.queue_overview(tenant) for tenant in (None, "default", "acme", "nobody")}
    assert [overview.in_inbox for overview in found.values()] == [3, 1, 2, 0]


async def test_a_split_places_a_request_in_sql_by_its_returned_id(postgres_url: str) -> None:
    halves = {
        name: Listed(id=name, provider=FunctionProvider(quiet), channels=(Channel.EMAIL,), weight=1)
        for name in ("one", "two")
    }
    async with Homing(postgres_url, providers=halves) as homing:
        connection = await asyncpg.connect(postgres_url)
        ids = [str(await connection.fetchval(f"SELECT homing.enqueue({MAIL})")) for _ in range(16)]
        await connection.close()
        assert (await homing.process()).succeeded == 16
        for id in ids:
            start = homing._roster.first_step(Channel.EMAIL, None, id).provider
            assert (await homing.get(id)).provider_names == (start,)


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
    assert again == first, "an id that names nothing must not be returned"
    later = await db.fetchval(f"SELECT homing.enqueue({MAIL}, idempotency_key => 'k')")
    assert later == first
    assert await db.fetchval("SELECT count(*) FROM homing.messages") == 2


async def test_a_key_that_is_too_long_becomes_a_dead_letter(
    homing: Homing, db: asyncpg.Connection[Any]
) -> None:
    key = secrets.token_hex(4000)  # which no compression makes fit into an index
    id_ = await db.fetchval(f"SELECT homing.enqueue({MAIL}, idempotency_key => $1)", key)
    assert (await homing.process()).failed == 1
    assert (await homing.get(str(id_))).reason is Reason.BAD_CONTENT


async def test_a_repeat_is_recognized_in_another_time_zone(
    homing: Homing, db: asyncpg.Connection[Any]
) -> None:
    call = f"SELECT homing.enqueue({MAIL}, idempotency_key => 'k', expires_at => '2100-01-01 00:00Z')"
    id_ = await db.fetchval(call)
    await db.execute("SET timezone = 'Asia/Tokyo'")
    assert await db.fetchval(call) == id_
    assert (await homing.process()).processed == 1
    assert await db.fetchval("SHOW timezone") == "Asia/Tokyo"


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
    assert again == first
    assert await db.fetchval("SELECT count(*) FROM homing.messages") == 2
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
    assert (await inbox.accept_inbox([second])).entries == 1
    assert (await inbox.accept_inbox([first])).entries == 0
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


async def test_requests_that_become_dead_letters_are_counted_as_failed(
    homing: Homing, db: asyncpg.Connection[Any]
) -> None:
    await db.fetchval(f"SELECT homing.enqueue({MAIL}, idempotency_key => 'k')")
    await db.fetchval(f"SELECT homing.enqueue({MAIL}, idempotency_key => 'k', type => 'other')")
    await db.fetchval("SELECT homing.enqueue('pigeon', '{}')")
    done = await homing.process()
    assert (done.processed, done.succeeded, done.failed) == (3, 1, 2)


async def test_a_request_that_expires_in_the_inbox_is_expired(
    homing: Homing, db: asyncpg.Connection[Any]
) -> None:
    id_ = await db.fetchval(f"SELECT homing.enqueue({MAIL}, expires_at => now() + interval '1 hour')")
    await db.execute(
        "UPDATE homing.inbox SET enqueued_at = enqueued_at - 7200000,"
        " request = jsonb_set(request::jsonb, '{expiresAt}', to_jsonb(now() - interval '1 minute'))::text"
    )
    await homing.process()
    await homing.process()
    found = await homing.get(str(id_))
    assert (found.status, found.attempt_count) == (Status.EXPIRED, 0)
    never = await db.fetchval(f"SELECT homing.enqueue({MAIL}, expires_at => now() - interval '1 minute')")
    await homing.process()
    assert (await homing.get(str(never))).reason is Reason.BAD_CONTENT


async def test_the_first_retry_of_a_reported_failure_counts_from_its_report(
    postgres_url: str, db: asyncpg.Connection[Any]
) -> None:
    """The entry waited in the inbox for 40 s, and a rule of its type has delays of its own."""
    rule = Rule(
        name="news",
        type="news",
        policy=PolicyPatch(backoff=Backoff.FIXED, steps_ms=(90_000, 95_000), max_attempts=3),
    )
    async with Homing(postgres_url, providers={"mail": quiet}, preset="fixed", rules=(rule,)) as other:
        assert await db.fetchval("SELECT count(*) FROM homing.inbox") == 0
        await other.process()  # writes the delays of the rules
        for type_, wait in (("news", 90), ("order", 60)):
            await db.fetchval(
                f"SELECT homing.enqueue({MAIL}, type => '{type_}', already_failed => true, last_error => 'x')"
            )
            await db.execute("UPDATE homing.inbox SET enqueued_at = enqueued_at - 40000")
            entered = await db.fetchval("SELECT enqueued_at FROM homing.inbox")
            seen = "SELECT id, next_retry_at, max_retries, retry_count FROM homing.failed_notifications"
            before = await db.fetchrow(f"{seen} WHERE notification_type = '{type_}'")
            assert (await other.process()).processed == 0
            after = await db.fetchrow(f"{seen} WHERE notification_type = '{type_}'")
            assert before == after
            assert before is not None
            assert before["next_retry_at"].timestamp() == (entered + wait * 1000) / 1000
            assert before["max_retries"] == (2 if type_ == "news" else 5)


@pytest.mark.source("003", "451-452")
async def test_a_changed_rule_is_in_force_for_sql_at_once(
    homing: Homing, db: asyncpg.Connection[Any]
) -> None:
    rule = Rule(name="all", policy=PolicyPatch(backoff=Backoff.FIXED, steps_ms=(7_000,), max_attempts=4))
    await homing.policies.set(rule, who="ada")
    wait = "SELECT extract(epoch FROM homing.calculate_next_retry($1) - homing.moment(homing.now_ms()))::int"
    assert [await db.fetchval(wait, n) for n in (0, 2, 9)] == [7, 7, 7]
    assert await db.fetchval("SELECT count(*) FROM homing.schedule") == 3


async def test_the_request_in_a_dead_letter_is_resent_with_sql(
    homing: Homing, db: asyncpg.Connection[Any]
) -> None:
    """Its channel had no provider when it was made."""
    phone = 'channel => \'sms\', recipient => \'{"phone": "+15551234567"}\', content => \'{"text": "x"}\''
    id_ = await db.fetchval(
        f"SELECT homing.enqueue({phone}, provider => 'texts', metadata => '{{\"n\": 1}}')"
    )
    assert (await homing.process()).failed == 1
    refused = await db.fetchval("SELECT homing.resend($1, 'ada')", id_)
    await homing.process()
    assert await db.fetchval("SELECT count(*) FROM homing.messages WHERE id = $1", refused) == 0
    assert not await db.fetchval("SELECT acknowledged FROM homing.dead_letters"), "it was not resent"


async def test_the_request_in_a_dead_letter_is_accepted_by_a_resend(
    postgres_url: str, homing: Homing, db: asyncpg.Connection[Any]
) -> None:
    phone = 'channel => \'sms\', recipient => \'{"phone": "+15551234567"}\', content => \'{"text": "x"}\''
    id_ = await db.fetchval(
        f"SELECT homing.enqueue({phone}, provider => 'texts', metadata => '{{\"n\": 1}}')"
    )
    assert (await homing.process()).failed == 1
    async with Homing(postgres_url, providers={"texts": quiet}) as fixed:
        new = await db.fetchval("SELECT homing.resend($1, 'ada', 'the provider exists now')", id_)
        assert await db.fetchval("SELECT homing.resend($1, 'bob')", id_) == new, "the same command waits"
        assert (await fixed.process()).succeeded == 1
        sent = await fixed.get(str(new))
        assert (sent.status, sent.resend_of, sent.metadata) == (Status.SENT, str(id_), {"n": 1})
        dead = await fixed.get(str(id_))
        assert (dead.acknowledged_by, dead.acknowledged_why) == ("ada", "the provider exists now")
        with pytest.raises(asyncpg.RaiseError, match=f"already resent, as {new}"):
            await db.fetchval("SELECT homing.resend($1)", id_)
        with pytest.raises(asyncpg.RaiseError, match="is sent; it cannot be resent"):
            await db.fetchval("SELECT homing.resend($1)", new)


async def test_a_notification_that_failed_is_resent_with_sql(postgres_url: str) -> None:
    provider = ScriptedProvider("mail", script=[OutcomeKind.BAD_RECIPIENT])
    async with Homing(postgres_url, providers={"mail": provider}) as homing:
        dead = (await homing.send("a@example.org", channel="email", body="x")).id
        assert (await homing.process()).failed == 1
        connection = await asyncpg.connect(postgres_url)
        new = await connection.fetchval("SELECT homing.resend($1, 'ada', 'moved')", dead)
        await connection.close()
        assert (await homing.process()).succeeded == 1
        sent, original = await homing.get(str(new)), await homing.get(dead)
        assert (sent.status, sent.resend_of) == (Status.SENT, dead)
        assert (original.resent_as, original.acknowledged_by) == (str(new), "ada")


async def test_simultaneous_resends_return_the_same_id(
    postgres_url: str, homing: Homing, db: asyncpg.Connection[Any]
) -> None:
    id_ = await db.fetchval("SELECT homing.enqueue('pigeon', '{}')")
    assert (await homing.process()).failed == 1
    other = await asyncpg.connect(postgres_url)
    try:
        async with db.transaction():
            first = await db.fetchval("SELECT homing.resend($1)", id_)
            second = asyncio.create_task(other.fetchval("SELECT homing.resend($1)", id_))
            waits = "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted AND pid = $1)"
            async with asyncio.timeout(60):
                while not (second.done() or await db.fetchval(waits, other.get_server_pid())):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        assert await second == first
    finally:
        await other.close()


async def test_a_waiting_notification_is_moved_to_the_dead_letters(
    homing: Homing, db: asyncpg.Connection[Any]
) -> None:
    later = await db.fetchval(
        f"SELECT homing.enqueue({MAIL}, send_at => now() + interval '1 hour', metadata => $1)",
        '{"entry_id": 7}',
    )
    await homing.process()
    await db.fetchval("SELECT homing.move_to_dead_letter($1, 'ada', 'not needed')", later)
    await homing.process()
    found = await homing.get(str(later))
    assert (found.status, found.reason) == (Status.FAILED, Reason.OPERATOR)
    (cause,) = (await homing.history(str(later))).causes
    assert (cause.name, cause.who, cause.why) == ("fail", "ada", "not needed")
    by_metadata = "SELECT id FROM homing.dead_letters WHERE metadata ->> 'entry_id' = '7'"
    assert await db.fetchval(by_metadata) == later
    assert await db.fetchval("SELECT count(*) FROM homing.inbox") == 0


async def test_the_previous_release_never_takes_a_command_that_it_does_not_know(
    homing: Homing, db: asyncpg.Connection[Any]
) -> None:
    """It takes entries whose lease time has passed, or lies too far in the future."""
    sent = await homing.send("a@example.org", channel="email", body="x")
    await db.execute("SELECT homing.move_to_dead_letter($1)", sent.id)
    old = "SELECT count(*) FROM homing.inbox WHERE lease_until <= $1 OR lease_until > $1"
    assert await db.fetchval(old, 2**60) == 0
    (entry,) = await inbox_of(homing).take_inbox(10, 60_000)
    assert entry.kind is InboxEntryKind.FAIL
    assert await db.fetchval(old, 2**60) == 0


async def test_requests_in_the_inbox_are_in_the_statistics(
    homing: Homing, db: asyncpg.Connection[Any]
) -> None:
    await db.execute(f"SELECT homing.enqueue({MAIL}) FROM generate_series(1, 3)")
    await db.execute(f"SELECT homing.enqueue({MAIL}, already_failed => true)")
    stats = "SELECT status, count, due FROM homing.queue_stats ORDER BY status"
    assert [tuple(row) for row in await db.fetch(stats)] == [("pending", 3, 3), ("retrying", 1, 0)]
    await homing.process()
    assert [tuple(row) for row in await db.fetch(stats)] == [("retrying", 1, 0), ("sent", 3, 0)]
    by_attempts = await db.fetch(
        "SELECT attempts, pending_count, sent_count, failed_count FROM homing.retry_statistics ORDER BY 1, 2"
    )
    assert [tuple(row) for row in by_attempts] == [(1, 1, 3, 0)]


async def test_the_metrics_count_what_is_accepted_from_the_inbox_and_its_first_retry(
    postgres_url: str,
) -> None:
    metrics = Metrics()
    async with Homing(postgres_url, providers={"mail": quiet}, observers=[metrics]) as homing:
        metrics.watch(homing)
        connection = await asyncpg.connect(postgres_url)
        await connection.execute(
            f"SELECT homing.enqueue({MAIL}), homing.enqueue({MAIL}, already_failed => true)"
        )
        await connection.close()
        await homing.process()
        page = (await metrics.page()).decode()
    assert 'retries_scheduled_total{queue="homing-standard"} 1.0' in page
    assert 'homing_accepted_total{lane="standard.email",tenant="default"} 2.0' in page
