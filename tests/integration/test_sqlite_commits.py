"""One writer commits for many callers: what they share, and what they do not."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from homing.core.errors import StoreError, StoreFull, StoreRejected
from homing.core.lifecycle.claims import NewNotification, Submission
from homing.core.lifecycle.commands import Command, CommandName
from homing.core.notifications import Filter, Status
from homing.stores.sqlite import SqliteStore
from homing.stores.sqlite.statements import SqliteTransaction
from homing.stores.sqlite.writer_thread import ThreadCall, WriterThread
from homing.testing.builders import (
    a_claim_request,
    a_message,
    a_notification,
    a_submission,
    dead,
    retry_in,
    sent,
)
from homing.testing.store_suite.harness import claim_all, count_by_status


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "homing.db")
    await store.open()
    await store.migrate()
    yield store
    await store.close()


def writer_of(store: SqliteStore) -> WriterThread:
    assert store._writer is not None
    return store._writer


class WriterBlock:
    """Blocks the writer inside a call, so that later calls queue up."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._entered = threading.Event()
        self._open = threading.Event()

    def _wait(self, _: sqlite3.Cursor) -> None:
        self._entered.set()
        assert self._open.wait(30), "the gate was never opened"

    async def __aenter__(self) -> WriterBlock:
        self._held = asyncio.ensure_future(writer_of(self._store).do(ThreadCall(self._wait)))
        assert await asyncio.to_thread(self._entered.wait, 30), "the writer did not come"
        return self

    def open(self) -> None:
        self._open.set()

    async def __aexit__(self, *_: object) -> None:
        self.open()
        await self._held


@contextmanager
def commits(store: SqliteStore) -> Iterator[list[str]]:
    """Counts the writer's COMMITs meanwhile, as SQLite reports them."""
    seen: list[str] = []

    def trace(statement: str) -> None:
        if statement == "COMMIT":
            seen.append(statement)

    connection = writer_of(store)._connection
    connection.set_trace_callback(trace)
    yield seen
    connection.set_trace_callback(None)


async def queued(*calls: asyncio.Future[Any]) -> None:
    """Lets the calls reach the writer's queue."""
    for _ in range(3):
        await asyncio.sleep(0)
    assert not any(call.done() for call in calls)


async def test_queued_calls_are_committed_together(store: SqliteStore) -> None:
    submissions = [a_submission() for _ in range(40)]
    with commits(store) as seen:
        async with WriterBlock(store):
            waiting = [asyncio.ensure_future(store.accept([submission])) for submission in submissions]
            await queued(*waiting)
        answers = await asyncio.gather(*waiting)
    assert len(seen) == 2  # the blocking call's own, and one for all the others
    assert [answer.ids for (answer,) in answers] == [(s.notifications[0].id,) for s in submissions]
    assert await count_by_status(store) == {Status.PENDING: 40}


async def test_queued_acceptances_are_written_by_the_same_statements(store: SqliteStore) -> None:
    statements: list[str] = []
    async with WriterBlock(store):
        waiting = [asyncio.ensure_future(store.accept([a_submission()])) for _ in range(32)]
        await queued(*waiting)
        writer_of(store)._connection.set_trace_callback(statements.append)
    await asyncio.gather(*waiting)
    writer_of(store)._connection.set_trace_callback(None)
    assert sum(text.startswith("INSERT INTO homing_notifications") for text in statements) == 1


async def test_a_store_opened_twice_at_once_has_one_writer(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "homing.db")
    await asyncio.gather(*(store.open() for _ in range(5)))
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("homing-sqlite-writer") == names.count("homing-sqlite-reader") == 1
    await store.close()
    assert not any(thread.name.startswith("homing-sqlite") for thread in threading.enumerate())


async def test_the_size_of_a_commit_group_is_limited(store: SqliteStore) -> None:
    with commits(store) as seen:
        async with WriterBlock(store):
            waiting = [asyncio.ensure_future(store.accept([a_submission()])) for _ in range(600)]
            await queued(*waiting)
        await asyncio.gather(*waiting)
    assert len(seen) == 1 + 3


async def test_settlements_of_many_callers_share_a_commit_and_keep_their_own_results(
    store: SqliteStore,
) -> None:
    await store.accept([a_submission(a_notification(), a_notification(), a_notification())])
    first, second, third = await claim_all(store)
    await store.settle([sent(third)])
    with commits(store) as seen:
        async with WriterBlock(store):
            waiting = [
                asyncio.ensure_future(store.settle([sent(first), sent(third)])),
                asyncio.ensure_future(store.settle([sent(second)])),
                asyncio.ensure_future(store.settle([sent(first)])),
            ]
            await queued(*waiting)
        one, two, late = await asyncio.gather(*waiting)
    assert len(seen) == 2
    assert (one.applied, one.stale) == ((first.id,), (third.id,))
    assert (two.applied, two.stale) == ((second.id,), ())
    assert (late.applied, late.stale) == ((), (first.id,))


CANCEL = Command(name=CommandName.CANCEL, who="ada")


async def test_a_settlement_based_on_an_outdated_row_is_repeated_with_the_stored_one(
    store: SqliteStore,
) -> None:
    await store.accept([a_submission(a_notification(), a_notification())])
    first, second = await claim_all(store)
    await store.amend("default", [second.id], CANCEL)  # requested during the attempt
    result = await store.settle([retry_in(first, 60_000), retry_in(second, 60_000)])
    assert (result.applied, result.stale) == ((first.id, second.id), ())
    assert await count_by_status(store) == {Status.RETRYING: 1, Status.CANCELLED: 1}
    for claim in (first, second):
        history = await store.get("default", claim.id)
        assert history is not None
        assert [attempt.number for attempt in history.attempts] == [1]


async def test_settlements_outdated_by_their_own_commit_group_are_repeated_too(store: SqliteStore) -> None:
    await store.accept([a_submission(*(a_notification() for _ in range(4)))])
    first, second, third, fourth = await claim_all(store)
    with commits(store) as seen:
        async with WriterBlock(store):
            waiting: list[asyncio.Future[Any]] = [
                asyncio.ensure_future(store.amend("default", [first.id, fourth.id], CANCEL)),
                asyncio.ensure_future(store.settle([retry_in(first, 60_000), sent(second)])),
                asyncio.ensure_future(store.settle([sent(third)])),
                asyncio.ensure_future(store.lead("upkeep", "w-1", 60_000)),
                asyncio.ensure_future(store.settle([retry_in(fourth, 60_000)])),
            ]
            await queued(*waiting)
        _, one, two, led, three = await asyncio.gather(*waiting)
    assert len(seen) == 2
    assert (one.applied, two.applied) == ((first.id, second.id), (third.id,))
    assert (led, three.applied) == (True, (fourth.id,))
    assert await count_by_status(store) == {Status.CANCELLED: 2, Status.SENT: 2}


async def test_a_lease_taken_over_by_another_process_is_stale_although_it_is_cached(
    store: SqliteStore, tmp_path: Path
) -> None:
    await store.accept([a_submission()])
    [claim] = (await store.claim(a_claim_request(lease_ms=1))).claims
    other = SqliteStore(tmp_path / "homing.db")
    await other.open()
    await asyncio.sleep(0.01)
    [taken] = (await other.reclaim("w-2", 10, 60_000)).claims
    assert (await store.settle([sent(claim)])).stale == (claim.id,)
    assert (await other.settle([sent(taken)])).applied == (claim.id,)
    await other.close()


@pytest.mark.parametrize("alike", [True, False])
async def test_any_message_id_is_stored_unchanged(store: SqliteStore, alike: bool) -> None:
    given = ["\x00 nul", 'a "quoted" \\ one', "🦊 \u2028", "12", "null"]
    await store.accept([a_submission(*(a_notification() for _ in given))])
    claims = await claim_all(store)
    settlements = [
        sent(claim, message_id=text) if alike or number % 2 else dead(claim, message_id=text, error=text)
        for number, (claim, text) in enumerate(zip(claims, given, strict=True))
    ]
    await store.settle(settlements)
    for claim, text in zip(claims, given, strict=True):
        history = await store.get("default", claim.id)
        assert history is not None
        assert [attempt.provider_message_id for attempt in history.attempts] == [text]


async def test_a_failing_call_among_calls_of_many_kinds_is_undone_alone(store: SqliteStore) -> None:
    await store.accept([a_submission()])
    [claim] = await claim_all(store)
    await store.settle([dead(claim)])
    before, after = a_submission(), a_submission()
    with commits(store) as seen:
        async with WriterBlock(store):
            accepted = asyncio.ensure_future(store.accept([before]))
            resend = Command(name=CommandName.RESEND, who="ada")  # without an id for the new one
            refused = asyncio.ensure_future(store.amend("default", [claim.id], resend))
            led = asyncio.ensure_future(store.lead("upkeep", "w-1", 60_000))
            later = asyncio.ensure_future(store.accept([after]))
            await queued(accepted, refused, led, later)
        with pytest.raises(ValueError, match=claim.id):
            await refused
        assert (await accepted)[0].ids == (before.notifications[0].id,)
        assert await led
        assert (await later)[0].ids == (after.notifications[0].id,)
    assert len(seen) == 2
    assert await count_by_status(store) == {Status.PENDING: 2, Status.FAILED: 1}


def write_and_fail(cursor: sqlite3.Cursor) -> None:
    cursor.execute("INSERT INTO homing_counters (name, value) VALUES ('half done', 1)")
    raise RuntimeError("in the middle of it")


async def test_writes_of_a_failing_call_are_undone(store: SqliteStore, tmp_path: Path) -> None:
    async with WriterBlock(store):
        before = asyncio.ensure_future(store.accept([a_submission()]))
        failing = asyncio.ensure_future(writer_of(store).do(ThreadCall(write_and_fail)))
        after = asyncio.ensure_future(store.lead("upkeep", "w-1", 60_000))
        await queued(before, failing, after)
    with pytest.raises(RuntimeError, match="in the middle"):
        await failing
    assert (await before)[0].ids
    assert await after
    with pytest.raises(RuntimeError, match="in the middle"):  # and the same without other calls
        await writer_of(store).do(ThreadCall(write_and_fail))
    connection = sqlite3.connect(tmp_path / "homing.db")
    assert connection.execute("SELECT * FROM homing_counters WHERE name = 'half done'").fetchall() == []
    connection.close()


def lose_the_transaction(cursor: sqlite3.Cursor) -> None:
    """Rolls the transaction back, as SQLite does after some disk errors."""
    cursor.execute("ROLLBACK")
    raise sqlite3.OperationalError("disk I/O error")


async def test_a_call_that_breaks_the_whole_transaction_does_not_affect_the_others(
    store: SqliteStore,
) -> None:
    await store.accept([a_submission()])
    [claim] = await claim_all(store)
    async with WriterBlock(store):
        settled = asyncio.ensure_future(store.settle([sent(claim)]))
        broken = asyncio.ensure_future(writer_of(store).do(ThreadCall(lose_the_transaction)))
        accepted = asyncio.ensure_future(store.accept([a_submission()]))
        await queued(settled, broken, accepted)
    with pytest.raises(StoreError):
        await broken
    assert (await settled).applied == (claim.id,)
    assert (await accepted)[0].ids
    assert await count_by_status(store) == {Status.SENT: 1, Status.PENDING: 1}


async def test_a_failing_acceptance_does_not_affect_the_others(store: SqliteStore) -> None:
    taken = a_submission()
    await store.accept([taken])
    stolen = a_submission(a_notification(id=taken.notifications[0].id))
    unspeakable = a_submission(a_notification(message=a_message(what=object())))
    good = [a_submission() for _ in range(3)]
    async with WriterBlock(store):
        batches: list[list[Submission]] = [[good[0]], [stolen], [good[1]], [unspeakable], [good[2]]]
        waiting = [asyncio.ensure_future(store.accept(batch)) for batch in batches]
        await queued(*waiting)
    one, theft, two, nonsense, three = await asyncio.gather(*waiting, return_exceptions=True)
    assert [not isinstance(answer, BaseException) for answer in (one, two, three)] == [True] * 3
    assert isinstance(theft, StoreError)
    assert isinstance(nonsense, StoreRejected)
    assert isinstance(nonsense.__cause__, TypeError)
    assert await count_by_status(store) == {Status.PENDING: 4}


@pytest.mark.parametrize("path", ["homing.db", ":memory:"])
@pytest.mark.parametrize("error", [TypeError("a bug"), RecursionError("a bug"), ValueError("a bug")])
async def test_an_error_in_the_code_is_no_rejection(path: str, error: Exception, tmp_path: Path) -> None:
    def fail(tx: object) -> None:
        raise error

    store = SqliteStore(path if path == ":memory:" else tmp_path / path)
    await store.open()
    await store.migrate()
    for run in (store._write, store._read):
        with pytest.raises(type(error), match="a bug"):
            await run(fail)
    await store.close()


async def test_a_translated_error_keeps_its_cause(store: SqliteStore) -> None:
    def fail(tx: SqliteTransaction) -> None:
        tx.run("SELECT * FROM homing_nothing")

    with pytest.raises(StoreError) as caught:
        await store._write(fail)
    assert isinstance(caught.value.__cause__, sqlite3.OperationalError)


async def test_a_failed_commit_fails_for_every_caller_and_changes_nothing(store: SqliteStore) -> None:
    await store.accept([a_submission()])

    def no_commit(action: int, what: str | None, *_: object) -> int:
        denied = action == sqlite3.SQLITE_TRANSACTION and what == "COMMIT"
        return sqlite3.SQLITE_DENY if denied else sqlite3.SQLITE_OK

    writer_of(store)._connection.set_authorizer(no_commit)
    calls = (store.accept([a_submission()]), store.claim(a_claim_request()), store.accept([a_submission()]))
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(answer) for answer in answers] == [StoreError] * 3
    writer_of(store)._connection.set_authorizer(None)
    assert await count_by_status(store) == {Status.PENDING: 1}
    await store.accept([a_submission()])
    assert len(await claim_all(store)) == 2


async def test_after_a_call_returns_others_can_see_its_changes(store: SqliteStore, tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "homing.db")
    for number in range(1, 20):
        await store.accept([a_submission()])
        assert connection.execute("SELECT count(*) FROM homing_notifications").fetchone() == (number,)
    connection.close()


async def test_a_repeated_call_is_recognized_by_its_ids_even_if_dedup_skipped_the_first_one(
    store: SqliteStore,
) -> None:
    def once() -> NewNotification:
        return a_notification(dedup_key="d", dedup_window_ms=60_000)

    await store.accept([a_submission(once())])
    submission = a_submission(once(), a_notification(), a_notification())
    [first] = await store.accept([submission])
    [again] = await store.accept([submission])
    assert again.ids == first.ids
    assert again.duplicates == frozenset(first.ids)
    assert await count_by_status(store) == {Status.PENDING: 3}


async def test_reads_do_not_wait_for_the_writer(store: SqliteStore) -> None:
    await store.accept([a_submission()])
    async with WriterBlock(store):  # the writer is inside a transaction now
        assert len((await store.list("default", Filter())).items) == 1
        assert await count_by_status(store) == {Status.PENDING: 1}


async def test_a_cancelled_caller_does_not_affect_others(store: SqliteStore) -> None:
    async with WriterBlock(store):
        waiting = [asyncio.ensure_future(store.accept([a_submission()])) for _ in range(3)]
        await queued(*waiting)
        waiting[1].cancel()
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(answers[1], asyncio.CancelledError)
    assert [isinstance(answer, tuple) for answer in answers] == [True, False, True]
    await store.accept([a_submission()])
    assert (await count_by_status(store))[Status.PENDING] >= 3


async def test_closing_finishes_queued_calls(store: SqliteStore, tmp_path: Path) -> None:
    async with WriterBlock(store) as gate:
        waiting = [asyncio.ensure_future(store.accept([a_submission()])) for _ in range(5)]
        await queued(*waiting)
        closing = asyncio.ensure_future(store.close())
        await asyncio.sleep(0)
        gate.open()
        await closing
    assert all(answer.ids for (answer,) in await asyncio.gather(*waiting))
    with pytest.raises(StoreError, match="closed"):
        await store.accept([a_submission()])
    with pytest.raises(StoreError, match="closed"):
        await store.tallies(None)
    connection = sqlite3.connect(tmp_path / "homing.db")
    assert connection.execute("SELECT count(*) FROM homing_notifications").fetchone() == (5,)
    connection.close()


async def test_a_closed_store_can_be_opened_again(store: SqliteStore) -> None:
    await store.accept([a_submission()])
    await store.close()
    await store.close()
    await store.open()
    assert await count_by_status(store) == {Status.PENDING: 1}


async def limit_pages(store: SqliteStore, pages: int | None) -> None:
    """A full disk: SQLite raises the same error as for a real one."""

    def action(cursor: sqlite3.Cursor) -> None:
        used = cursor.execute("PRAGMA page_count").fetchone()[0]
        cursor.execute(f"PRAGMA max_page_count = {2**30 if pages is None else used + pages}")

    await writer_of(store).do(ThreadCall(action))


async def test_a_full_disk_changes_nothing_and_later_calls_succeed(store: SqliteStore) -> None:
    await store.accept([a_submission()])
    await limit_pages(store, 4)
    large = a_submission(*(a_notification(message=a_message("x" * 5000)) for _ in range(50)))
    with pytest.raises(StoreFull, match="free some space"):
        await store.accept([large])
    assert await count_by_status(store) == {Status.PENDING: 1}
    assert len((await store.list("default", Filter())).items) == 1
    await limit_pages(store, None)
    assert len((await store.accept([large]))[0].ids) == 50
    assert await count_by_status(store) == {Status.PENDING: 51}


async def test_a_full_disk_fails_only_the_call_that_does_not_fit(store: SqliteStore) -> None:
    await store.accept([a_submission()])
    [claim] = await claim_all(store)
    await limit_pages(store, 8)
    large = a_submission(*(a_notification(message=a_message("x" * 5000)) for _ in range(50)))
    async with WriterBlock(store):
        settled = asyncio.ensure_future(store.settle([sent(claim)]))
        refused = asyncio.ensure_future(store.accept([large]))
        led = asyncio.ensure_future(store.lead("upkeep", "w-1", 60_000))
        await queued(settled, refused, led)
    with pytest.raises(StoreFull):
        await refused
    assert (await settled).applied == (claim.id,)
    assert await led
    assert await count_by_status(store) == {Status.SENT: 1}


async def test_every_connection_makes_commits_survive_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit in WAL mode is on the disk only if `synchronous` is FULL or EXTRA."""
    opened: list[sqlite3.Connection] = []
    real = sqlite3.connect

    def connect(*args: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = real(*args, **options)
        if "mode=ro" not in str(args[0]):
            opened.append(connection)
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect)
    store = SqliteStore(tmp_path / "homing.db")
    await store.open()
    await store.migrate()
    await store.accept([a_submission()])
    await store.list("default", Filter(), limit=10)
    settings = [
        (one.execute("PRAGMA journal_mode").fetchone()[0], one.execute("PRAGMA synchronous").fetchone()[0])
        for one in opened
    ]
    assert settings
    assert all(mode == "wal" and synchronous >= 2 for mode, synchronous in settings), settings
    await store.close()


async def test_a_call_of_a_stopped_writer_is_refused_instead_of_waiting_forever(store: SqliteStore) -> None:
    writer = writer_of(store)
    await store.close()
    async with asyncio.timeout(30):
        with pytest.raises(StoreError, match="is closed; open the store first"):
            await writer.do(ThreadCall(lambda cursor: None))
