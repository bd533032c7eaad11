"""Tests of receipts that arrive early, late, twice or in any order."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from homing.core.effects import suppression_key
from homing.core.model import OutcomeKind, Reason, ReceiptEvent, Status
from homing.core.ports import Backend
from homing.testing.builders import (
    FAILURE_CLASSES,
    a_receipt,
    a_settlement,
    an_attempt,
    an_id,
    dead,
    in_doubt,
    retry_in,
    sent,
)
from homing.testing.store_suite.harness import Harness
from homing.testing.store_suite.steps import (
    claim_all,
    claim_one,
    counts,
    see,
    status_of,
    take,
)

E = ReceiptEvent


class OrderingTests:
    """Tests of receipts that arrive before the settlement, and of the order of receipts."""

    async def test_an_early_receipt_is_kept_and_applied_by_the_settle(self, harness: Harness) -> None:
        store = harness.store
        claim = await take(store)
        receipt = a_receipt("m-1", E.DELIVERED)
        assert (await store.receipt([receipt])).orphaned == (receipt.event_id,)
        assert await status_of(store, claim.id) is Status.SENDING
        assert (await store.settle([sent(claim, "m-1")])).applied == (claim.id,)
        assert await status_of(store, claim.id) is Status.DELIVERED
        assert await counts(store) == {Status.DELIVERED: 1}
        history = await store.get("default", claim.id)
        assert history is not None
        assert [cause.name for cause in history.causes] == ["delivered"]

    async def test_an_early_failure_reopens_right_after_the_settle(self, harness: Harness) -> None:
        store = harness.store
        claim = await take(store)
        await store.receipt([a_receipt("m-1", E.FAILED)])
        await store.settle([sent(claim, "m-1")])
        assert await status_of(store, claim.id) is Status.RETRYING
        assert (await claim_one(store)).provider == "acs"

    async def test_reference_data_of_an_early_receipt_is_written_with_the_settle(
        self, harness: Harness
    ) -> None:
        store = harness.store
        claim = await take(store)
        await store.receipt([a_receipt("m-1", E.SPAM_REPORT)])
        key = suppression_key(claim.channel, claim.address, "*")
        assert await store.get_many("default", "suppression", [key]) == {}
        await store.settle([sent(claim, "m-1")])
        assert key in await store.get_many("default", "suppression", [key])

    async def test_a_repeated_early_receipt_is_applied_once(self, harness: Harness) -> None:
        store = harness.store
        claim = await take(store)
        receipt = a_receipt("m-1", E.OPEN)
        await store.receipt([receipt])
        assert (await store.receipt([receipt])).unchanged == (receipt.event_id,)
        await store.settle([sent(claim, "m-1")])
        assert (await store.receipt([receipt])).unchanged == (receipt.event_id,)
        assert (await see(store, claim.id)).engagement == {"open": 1}

    async def test_a_receipt_about_an_earlier_attempt_waits_while_the_next_is_under_way(
        self, harness: Harness
    ) -> None:
        store = harness.store
        claim = await take(store)
        await store.settle([retry_in(claim, 0, message_id="m-1")])
        second = await claim_one(store)
        receipt = a_receipt("m-1", E.DELIVERED)
        assert (await store.receipt([receipt])).orphaned == (receipt.event_id,)
        assert await status_of(store, claim.id) is Status.SENDING
        await store.settle([dead(second)])
        assert await status_of(store, claim.id) is Status.DELIVERED

    @pytest.mark.parametrize("kind", FAILURE_CLASSES)
    async def test_a_failure_of_any_class_ends_the_same_early_and_late(
        self, harness: Harness, kind: OutcomeKind | None
    ) -> None:
        store = harness.store
        early, late = await take(store), await take(store)
        receipt = a_receipt("m-early", E.FAILED, outcome=kind)
        assert (await store.receipt([receipt])).orphaned == (receipt.event_id,)
        await store.settle([sent(early, "m-early"), sent(late, "m-late")])
        await store.receipt([a_receipt("m-late", E.FAILED, outcome=kind)])
        one, other = await see(store, early.id), await see(store, late.id)
        assert (one.status, one.reason, one.provider) == (other.status, other.reason, other.provider)

    @pytest.mark.parametrize("seed", range(40))
    @pytest.mark.parametrize("start", [Status.SENT, Status.IN_DOUBT, Status.FAILED])
    async def test_any_order_and_any_repeats_end_in_the_same_status(
        self, harness: Harness, start: Status, seed: int
    ) -> None:
        """The same events about one message are shuffled, repeated, and partly sent before the settlement."""
        store, chance = harness.store, random.Random(seed)
        events = [
            (event, chance.choice(FAILURE_CLASSES))
            for event in chance.choices([*E, E.DELIVERED, E.FAILED, E.FAILED], k=chance.randint(1, 5))
        ]
        always = chance.random() < 0.5
        endings = set()
        for way in range(4):
            endings.add(await _hear(store, start, events, always, random.Random(100 * seed + way), way))
        assert len(endings) == 1, f"{events} ended as {endings}"


async def _hear(
    store: Backend,
    start: Status,
    events: list[tuple[ReceiptEvent, OutcomeKind | None]],
    always: bool,
    chance: random.Random,
    way: int,
) -> tuple[Status, Reason | None, int, tuple[tuple[str, int], ...]]:
    """Sends these events in one of many orders, and returns the notification's final state."""
    message_id = an_id()
    heard = [
        a_receipt(message_id, event, event_id=f"{message_id}-{number}", outcome=outcome)
        for number, (event, outcome) in enumerate(events)
    ]
    if way:
        heard += chance.choices(heard, k=chance.randint(0, 4))
        chance.shuffle(heard)
    early = chance.randint(0, len(heard)) if way > 1 else 0
    claim = await take(store)
    await store.receipt(heard[:early])
    match start:
        case Status.SENT:
            settlement = sent(claim, message_id, bounce_always=always)
        case Status.IN_DOUBT:
            settlement = replace(in_doubt(claim, message_id), bounce_always=always)
        case _:
            record = an_attempt(claim, message_id=message_id)
            settlement = a_settlement(
                claim, start, attempt=record, reason=Reason.BAD_CONTENT, bounce_always=always
            )
    await store.settle([settlement])
    for receipt in heard[early:]:
        await store.receipt([receipt])
    found = await see(store, claim.id)
    await _leave_nothing_due(store, claim.id)
    return found.status, found.reason, found.attempt_count, tuple(sorted(found.engagement.items()))


async def _leave_nothing_due(store: Backend, id: str) -> None:
    for claim in await claim_all(store):
        assert claim.id == id
        await store.settle([dead(claim)])
