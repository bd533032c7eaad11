"""The reader of the SQL inbox: no command stops those after it, and an empty inbox costs nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import json

from homing.core.errors import StoreError, StoreRejected, StoreUnavailable
from homing.core.lifecycle.commands import AmendResult, Command
from homing.core.ports.stores import AcceptedEntry, InboxAcceptance, InboxEntry, InboxEntryKind, RetryRule
from homing.core.retry.policy import RetryPolicy, Rule
from homing.engine.intake.recipient_lookup import DirectoryFailed
from homing.engine.intake.sql_inbox import InboxReader, InboxRun
from homing.engine.operations.sql_schedule import SqlSchedule, store_delays
from homing.engine.system_runtime import LocalWaker
from homing.testing.manual_clock import ManualClock

SECOND = 1_000


class MemoryInbox:
    """An inbox with commands in memory, some of which the store refuses."""

    def __init__(self, *ids: str, refused: str = "", error: type[StoreError] = StoreRejected) -> None:
        self.entries = [
            InboxEntry(number=n, kind=InboxEntryKind.RETRY, tenant="default", id=f"r{n}", notification_id=id)
            for n, id in enumerate(ids)
        ]
        self.refused, self.error = refused, error
        self.applied: list[str] = []
        self.reads = 0
        self.delays_ms: Sequence[int] = ()

    async def take_inbox(self, limit: int, lease_ms: int) -> tuple[InboxEntry, ...]:
        self.reads += 1
        await asyncio.sleep(0)
        return tuple(self.entries[:limit])

    async def count_inbox(self, tenant: str | None) -> int:
        return len(self.entries)

    async def accept_inbox(self, batch: Sequence[AcceptedEntry]) -> InboxAcceptance:
        raise NotImplementedError

    async def amend_inbox(self, entry: InboxEntry, command: Command) -> AmendResult | None:
        assert entry.notification_id is not None
        if entry.notification_id == self.refused:
            raise self.error("no")
        self.applied.append(entry.notification_id)
        await self.remove_inbox([entry])
        return None

    async def remove_inbox(self, entries: Sequence[InboxEntry]) -> None:
        self.entries = [one for one in self.entries if one not in entries]

    async def store_retry_delays(self, delays_ms: Sequence[int], rules: Sequence[RetryRule] = ()) -> None:
        self.delays_ms = delays_ms


def a_reader(inbox: MemoryInbox, waker: LocalWaker | None = None, **policy: Any) -> InboxReader:
    async def refresh(**_: Any) -> None:
        pass

    async def purge() -> None:
        pass

    async def is_no_request(entry: InboxEntry) -> bool:
        return False

    book = SimpleNamespace(policy=lambda keys, mode: RetryPolicy(**policy), combinations=lambda: ())
    policies: Any = SimpleNamespace(refresh=refresh, book=book)
    intake: Any = None  # only send requests need it
    return InboxReader(
        inbox,
        intake=intake,
        policies=policies,
        schedule=SqlSchedule(inbox, policies),
        resend_request=is_no_request,
        purge=purge,
        clock=ManualClock(),
        waker=waker or LocalWaker(),
        wake_worker=lambda: None,
        new_id=lambda: "b-1",
        poll_ms=lambda: 60 * SECOND,
    )


async def test_a_command_that_the_store_refuses_is_removed_and_the_others_are_applied() -> None:
    inbox = MemoryInbox("n-1", "n-2", "n-3", refused="n-2")
    assert await a_reader(inbox).run_once() == InboxRun(3)
    assert (inbox.applied, inbox.entries) == (["n-1", "n-3"], [])


async def test_a_command_stays_in_the_inbox_while_the_store_is_unavailable() -> None:
    inbox = MemoryInbox("n-1", refused="n-1", error=StoreUnavailable)
    with pytest.raises(StoreUnavailable):
        await a_reader(inbox).run_once()
    assert [entry.notification_id for entry in inbox.entries] == ["n-1"]


async def test_recipients_that_take_long_to_look_up_are_looked_up_at_the_same_time() -> None:
    class SlowIntake:
        """Returns no request before it was asked for all of them."""

        def __init__(self) -> None:
            self.asked = asyncio.Barrier(8)

        async def prepare(self, *arguments: Any, **fields: Any) -> Any:
            await self.asked.wait()
            raise DirectoryFailed("hangs")

    inbox, intake = MemoryInbox(), SlowIntake()
    inbox.entries = [
        InboxEntry(number=n, kind=InboxEntryKind.SEND, tenant="default", id=f"n-{n}", request="{}")
        for n in range(8)
    ]
    reader = a_reader(inbox)
    slow: Any = intake
    reader._intake = slow
    async with asyncio.timeout(60):
        assert await reader.run_once() == InboxRun(8)
    assert len(inbox.entries) == 8, "they are tried again"


async def test_the_error_of_a_dead_letter_is_as_long_as_that_of_an_attempt_at_most() -> None:
    request = json.encode({"x" * 200_000: 1}).decode()
    entry = InboxEntry(number=1, kind=InboxEntryKind.SEND, tenant="default", id="n-1", request=request)
    reader = a_reader(MemoryInbox())
    no_intake: Any = SimpleNamespace(prepare=None)  # the request is already invalid when it is read
    reader._intake = no_intake
    accepted = await reader._accepted(entry)
    assert accepted is not None
    (dead,) = accepted.submission.notifications
    assert dead.last_error is not None
    assert dead.last_error.startswith("xxxx")
    assert len(dead.last_error) == 500


async def test_the_delays_of_all_retries_are_stored() -> None:
    inbox = MemoryInbox()
    await a_reader(inbox, max_attempts=4, base_ms=SECOND, factor=2.0).run_once()
    assert inbox.delays_ms == (SECOND, 2 * SECOND, 4 * SECOND)


async def test_the_stored_delays_are_those_of_the_rules_in_force() -> None:
    def book(base_ms: int) -> Any:
        policy = RetryPolicy(max_attempts=2, base_ms=base_ms)
        return SimpleNamespace(policy=lambda keys, mode: policy, combinations=lambda: ())

    async def refresh(**_: Any) -> None:
        policies.book = book(7 * SECOND)

    inbox = MemoryInbox()
    policies: Any = SimpleNamespace(refresh=refresh, book=book(SECOND))
    reader = a_reader(inbox)
    reader._policies, reader._schedule = policies, SqlSchedule(inbox, policies)
    await reader.run_once()
    assert inbox.delays_ms == (7 * SECOND,)


async def test_other_tasks_run_while_the_delays_of_many_rules_are_computed() -> None:
    rules = [(Rule(name=f"r{n}", type=f"t{n}"), RetryPolicy(max_attempts=1000)) for n in range(20)]
    book: Any = SimpleNamespace(policy=lambda *_: RetryPolicy(), combinations=lambda: rules)
    storing = asyncio.create_task(store_delays(MemoryInbox(), book))
    turns = 0
    while not storing.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 20


async def test_an_empty_inbox_is_read_again_only_when_the_reader_is_woken() -> None:
    inbox, waker = MemoryInbox(), LocalWaker()
    reading = asyncio.create_task(a_reader(inbox, waker).run())
    for reads in (1, 2):
        for _ in range(20):
            await asyncio.sleep(0)
        assert inbox.reads == reads
        waker.wake()
    reading.cancel()


class CountingInbox(MemoryInbox):
    """An inbox that counts how often delays are stored, and fails as often as there are errors."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__()
        self.errors = list(errors)
        self.stores = 0

    async def store_retry_delays(self, delays_ms: Sequence[int], rules: Sequence[RetryRule] = ()) -> None:
        self.stores += 1
        if self.errors:
            raise self.errors.pop()
        await super().store_retry_delays(delays_ms, rules)


def a_schedule(inbox: MemoryInbox) -> tuple[SqlSchedule, Any]:
    policies: Any = SimpleNamespace(book=_book())
    return SqlSchedule(inbox, policies), policies


def _book() -> Any:
    return SimpleNamespace(policy=lambda *_: RetryPolicy(max_attempts=2), combinations=lambda: ())


async def test_delays_are_stored_again_only_after_a_change_of_the_rules() -> None:
    inbox = CountingInbox()
    schedule, policies = a_schedule(inbox)
    for _ in range(3):
        await schedule.store()
    assert inbox.stores == 1
    policies.book = _book()
    await schedule.store()
    assert inbox.stores == 2


async def test_delays_that_the_store_refuses_are_not_stored_again() -> None:
    inbox = CountingInbox(StoreRejected("no"))
    schedule, _ = a_schedule(inbox)
    for _ in range(2):
        await schedule.store()
    assert (inbox.stores, inbox.delays_ms) == (1, ())


async def test_delays_are_stored_as_soon_as_the_store_is_available_again() -> None:
    inbox = CountingInbox(StoreUnavailable())
    schedule, _ = a_schedule(inbox)
    with pytest.raises(StoreUnavailable):
        await schedule.store()
    await schedule.store()
    assert (inbox.stores, len(inbox.delays_ms)) == (2, 1)


async def test_a_delay_function_that_fails_is_not_called_again_for_the_same_rules() -> None:
    inbox = CountingInbox(ZeroDivisionError())
    schedule, _ = a_schedule(inbox)
    for _ in range(2):
        await schedule.store()
    assert inbox.stores == 1
