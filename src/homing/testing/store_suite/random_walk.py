"""A long random sequence of all operations, after which counts, lists and histories must agree.

Invariant numbers are those in docs/explanation/simulation.md.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from homing.core.lifecycle.claims import Claim, ClaimBatch, Lease
from homing.core.lifecycle.commands import Command, CommandName
from homing.core.lifecycle.events import STATUS_CHANGED, Event
from homing.core.lifecycle.outcomes import Settlement
from homing.core.lifecycle.receipts import ReceiptEvent
from homing.core.lifecycle.states import LIVE, WAITING, may_settle
from homing.core.lifecycle.views import optional_moment
from homing.core.notifications import Filter, Mode, Notification, OutcomeKind, Reason, Status
from homing.core.ports.stores import Backend, Retention
from homing.testing.builders import (
    DAY_MS,
    FAILURE_CLASSES,
    HOUR_MS,
    MINUTE_MS,
    STANDARD_EMAIL,
    STANDARD_SMS,
    a_claim_request,
    a_notification,
    a_receipt,
    a_settlement,
    a_submission,
    an_attempt,
    an_id,
    an_sms,
    dead,
    in_doubt,
    postponed,
    retry_in,
    sent,
)
from homing.testing.store_suite.harness import Harness, list_all, subscribe, tally_cells


class RandomWalkTests:
    """Tests of all operations in random order."""

    walk_steps = 250
    """Number of operations in one walk."""

    @pytest.mark.parametrize("seed", range(8))
    async def test_counts_lists_and_histories_agree_after_a_random_walk(
        self, harness: Harness, seed: int
    ) -> None:
        walker = RandomWalker(harness, await harness.second(), random.Random(seed))
        for number in range(self.walk_steps):
            await walker.step()
            if number % 10 == 0 or number == self.walk_steps - 1:
                await _check_counts(harness.store, walker)
        await _check_histories(harness.store, walker)

    @pytest.mark.parametrize("seed", range(100, 103))
    async def test_every_live_row_can_reach_a_final_status(self, harness: Harness, seed: int) -> None:
        store = harness.store
        walker = RandomWalker(harness, await harness.second(), random.Random(seed))
        for _ in range(self.walk_steps // 2):
            await walker.step()
        for _ in range(4):
            await harness.advance(40 * DAY_MS)
            claims = (await store.claim(a_claim_request(*LANES, lease_ms=HOUR_MS))).claims
            lost = (await store.reclaim("w-end", 10_000, HOUR_MS)).claims
            await store.settle([_end(claim) for claim in (*claims, *lost)])
        for tenant in TENANTS:
            alive = {tally.status for tally in await store.tallies(tenant) if tally.count} & LIVE
            assert not alive


async def _check_counts(store: Backend, walker: RandomWalker) -> None:
    """Checks that every stored count equals a count of the rows (invariant 1)."""
    all_cells: dict[tuple[Status, int], int] = {}
    for tenant in TENANTS:
        rows = await list_all(store, tenant)
        recount: dict[tuple[Status, int], int] = {}
        for row in rows:
            cell = (row.status, row.attempt_count)
            recount[cell] = recount.get(cell, 0) + 1
            all_cells[cell] = all_cells.get(cell, 0) + 1
        tallies = await store.tallies(tenant)
        assert {c: n for c, (n, _) in tally_cells(tallies).items() if n} == recount
        assert sum(t.count + t.purged for t in tallies) == len(walker.accepted[tenant])
        assert {row.id for row in rows} <= walker.accepted[tenant]
        await _check_reads(store, tenant, rows)
    assert {c: n for c, (n, _) in tally_cells(await store.tallies(None)).items() if n} == all_cells
    assert set(await store.tenants()) == {tenant for tenant in TENANTS if walker.accepted[tenant]}


async def _check_reads(store: Backend, tenant: str, rows: list[Notification]) -> None:
    """Checks that all other reads agree with the list of rows."""
    now = optional_moment(await store.now_ms())
    waiting = [row for row in rows if row.status in WAITING]
    assert all((row.next_retry_at is not None) == (row.status in WAITING) for row in rows)
    by_due = sorted((row.next_retry_at, row.id) for row in waiting if row.next_retry_at)
    page = await store.waiting(tenant, limit=len(rows) + 1)
    assert [(item.next_retry_at, item.id) for item in page.items] == by_due
    ready = await store.waiting(tenant, limit=len(rows) + 1, ready=True)
    assert {item.id for item in ready.items} >= {id for due_at, id in by_due if due_at <= now}
    retried = [row.first_failed_at for row in rows if row.status is Status.RETRYING and row.first_failed_at]
    assert await store.oldest_retry_at(tenant) == min(retried, default=None)
    dead = await list_all(store, tenant, Filter(statuses=(Status.FAILED,)))
    assert sum(group.count for group in await store.error_groups(tenant, limit=1000)) == len(dead)


async def _check_histories(store: Backend, walker: RandomWalker) -> None:
    """Checks that each status change is legal, follows the last one and is recorded (invariants 7 and 12)."""
    events: dict[str, list[Event]] = {}
    for event in await store.outbox("sink", "relay", 1_000_000, HOUR_MS):
        assert event.name == STATUS_CHANGED
        assert event.notification_id is not None
        events.setdefault(event.notification_id, []).append(event)
    assert sum(len(ids) for ids in walker.accepted.values()) == len(events.keys() | walker.leased_at_once)
    for tenant in TENANTS:
        for row in await list_all(store, tenant):
            await _check_history(store, row, events.get(row.id, []), row.id in walker.leased_at_once)


async def _check_history(store: Backend, row: Notification, events: list[Event], leased: bool) -> None:
    history = await store.get(row.tenant, row.id)
    assert history is not None
    causes = [(cause.status_before, cause.status_after) for cause in history.causes]
    settled = 0
    status: Status | None = Status.PENDING if leased else None
    for event in events:
        before, after = event.payload["statusBefore"], Status(event.payload["status"])
        if before is None:
            assert (status, after) == (None, Status.PENDING)
        elif before == Status.SENDING:
            assert status in WAITING
            assert may_settle(Status.SENDING, after)
            settled += 1
        else:
            assert status == before
            assert (status, after) in causes
        status = after
    assert row.status is Status.SENDING or row.status is status
    assert len(history.attempts) <= settled
    numbers = [attempt.number for attempt in history.attempts]
    assert numbers == sorted(set(numbers))
    assert max(numbers, default=0) <= row.attempt_count


def _end(claim: Claim) -> Settlement:
    if claim.overdue:
        return a_settlement(claim, Status.EXPIRED, attempt=None, reason=Reason.EXPIRED)
    return sent(claim)


TENANTS = ("a", "b", "c")

LANES = (STANDARD_EMAIL, STANDARD_SMS)

_RETENTION = Retention(
    delivered_ms=HOUR_MS,
    sent_ms=6 * HOUR_MS,
    others_ms=DAY_MS,
    keys_ms=DAY_MS,
    outbox_ms=1000 * DAY_MS,  # the walk checks the events of its whole history
)


class RandomWalker:
    """Performs random operations on two instances of a store and checks each result."""

    def __init__(self, harness: Harness, second: Backend, rng: random.Random) -> None:
        self._harness = harness
        self._stores = (harness.store, second)
        self._rng = rng
        self.accepted: dict[str, set[str]] = {tenant: set() for tenant in TENANTS}
        self.leased_at_once: set[str] = set()
        self._held: dict[str, Claim] = {}
        """Newest claim of each notification that has not been settled."""
        self._attempts: dict[str, int] = {}
        self._tokens: dict[str, int] = {}
        self._old: list[Claim] = []
        self._messages: list[tuple[str, str]] = []
        """(provider, provider message id) pairs to send receipts for. Some belong to attempts that are not
        settled yet."""
        self._registered = False
        self._ways = (
            (self._accept, 6),
            (self._claim, 6),
            (self._settle, 8),
            (self._advance, 3),
            (self._reclaim, 2),
            (self._extend, 1),
            (self._command, 3),
            (self._receive, 4),
            (self._prune, 1),
        )

    async def step(self) -> None:
        """Performs one random operation on one of the two instances."""
        if not self._registered:
            self._registered = True
            await subscribe(self._stores[0], STATUS_CHANGED)
        [way] = self._rng.choices([way for way, _ in self._ways], [weight for _, weight in self._ways])
        await way(self._rng.choice(self._stores))

    async def _accept(self, store: Backend) -> None:
        rng, now = self._rng, await store.now_ms()
        tenant = rng.choice(TENANTS)
        news = []
        for _ in range(rng.randint(1, 4)):
            send_at = now + rng.randrange(DAY_MS) if rng.random() < 0.3 else None
            if rng.random() < 0.3:
                news.append(an_sms(outlet=rng.choice(("twilio", "sns")), send_at=send_at))
                continue
            news.append(
                a_notification(
                    send_at=send_at,
                    expires_at=now + rng.randrange(1, 2 * DAY_MS) if rng.random() < 0.3 else None,
                    max_age_ms=rng.choice((HOUR_MS, DAY_MS, 9 * DAY_MS)),
                    dedup_key=f"d-{rng.randrange(9)}" if rng.random() < 0.2 else None,
                    dedup_window_ms=HOUR_MS,
                )
            )
        synchronous = rng.random() < 0.1
        if synchronous:
            news = [a_notification(mode=Mode.SYNCHRONOUS)]
        submission = a_submission(
            *news,
            tenant=tenant,
            key=f"k-{rng.randrange(30)}" if rng.random() < 0.3 else None,
            fingerprint=rng.choice(("one", "one", "two")),
            lease_to="caller" if synchronous else None,
            lease_ms=HOUR_MS,
        )
        [answer] = await store.accept([submission])
        fresh = set(answer.ids) & {new.id for new in news}
        assert not (answer.conflict and answer.ids)
        assert set(answer.ids) - fresh <= answer.duplicates
        self.accepted[tenant] |= fresh
        if synchronous:
            self.leased_at_once |= {claim.id for claim in answer.claims}
            self._note(answer.claims)

    async def _claim(self, store: Backend) -> None:
        rng = self._rng
        request = a_claim_request(
            *LANES,
            worker=f"w-{rng.randrange(3)}",
            lease_ms=rng.choice((MINUTE_MS, HOUR_MS)),
            slots=rng.randint(0, 8),
            held={tenant: rng.randint(0, 9) for tenant in TENANTS},
            tenant_factor=rng.choice((None, 1, 7)),
            outlet_slots=rng.randint(0, 6),
            outlet_capacity={"sendgrid": rng.randint(0, 8)},
        )
        batch = await store.claim(request)
        for lane in LANES:
            assert sum(claim.lane == lane for claim in batch.claims) <= request.lanes[lane].slots
        for claim in batch.claims:
            assert claim.due_at <= batch.now
            assert not claim.overdue
        assert batch.next_due_at is None or batch.next_due_at > batch.now
        self._note(batch.claims)

    async def _reclaim(self, store: Backend) -> None:
        batch: ClaimBatch = await store.reclaim("w-r", self._rng.randint(1, 10), HOUR_MS)
        for claim in batch.claims:
            held = self._held.get(claim.id)
            if held is not None and held.lease_until > batch.now:
                assert claim.overdue, "reclaim returned a row whose lease has not expired"
        self._note(batch.claims)

    def _note(self, claims: Sequence[Claim]) -> None:
        """Checks that tokens only rise and that only a claim counts an attempt (invariants 4 and 6)."""
        assert len({claim.id for claim in claims}) == len(claims)
        for claim in claims:
            assert claim.token > self._tokens.get(claim.id, 0)
            self._tokens[claim.id] = claim.token
            before, held = self._attempts.get(claim.id, 0), self._held.get(claim.id)
            lost = claim.overdue or (held is not None and held.started_at == claim.started_at)
            self._attempts[claim.id] = before if lost else before + 1
            assert claim.attempt == self._attempts[claim.id]
            if held is not None:
                self._old.append(held)
            self._held[claim.id] = claim
            if self._rng.random() < 0.3:  # receipts may arrive before the settlement
                self._messages.append((claim.provider, f"m-{claim.id}-{claim.attempt}"))

    async def _settle(self, store: Backend) -> None:
        rng = self._rng
        claims = rng.sample(list(self._held.values()), min(len(self._held), rng.randint(1, 8)))
        if self._old and rng.random() < 0.3:
            claims.append(rng.choice(self._old))
        settlements = [self._settlement(claim) for claim in claims]
        result = await store.settle(settlements)
        assert len(result.applied) + len(result.stale) + len(result.missing) == len(claims)
        applied = list(result.applied)
        for claim, settlement in zip(claims, settlements, strict=True):
            if claim.id not in applied or claim.token != self._tokens[claim.id]:
                continue
            applied.remove(claim.id)
            self._attempts[claim.id] -= settlement.give_back
            del self._held[claim.id]
            self._old.append(claim)
        assert not applied, "a settlement with an old token was applied"

    def _settlement(self, claim: Claim) -> Settlement:
        rng = self._rng
        if claim.overdue:
            return a_settlement(claim, Status.EXPIRED, attempt=None, reason=Reason.EXPIRED)
        message_id = f"m-{claim.id}-{claim.attempt}" if rng.random() < 0.8 else None
        if message_id is not None:
            self._messages.append((claim.provider, message_id))
        if claim.mode is Mode.SYNCHRONOUS:
            return rng.choice((sent(claim, message_id), dead(claim, message_id=message_id)))
        ways = (
            sent(claim, message_id),
            sent(claim, message_id),
            retry_in(claim, rng.randrange(DAY_MS), message_id=message_id),
            retry_in(claim, 0, provider=rng.choice(("acs", "sns")), hold_ms=HOUR_MS),
            postponed(claim, rng.randrange(HOUR_MS)),
            dead(claim, message_id=message_id, error_code=rng.choice(("550", "551"))),
            in_doubt(claim, message_id),
            a_settlement(claim, Status.SKIPPED, attempt=None, reason=Reason.SUPPRESSED, give_back=True),
            a_settlement(claim, Status.DELIVERED, attempt=an_attempt(claim, OutcomeKind.ACCEPTED)),
        )
        return rng.choice(ways)

    async def _advance(self, _: Backend) -> None:
        await self._harness.advance(self._rng.choice((1_000, MINUTE_MS, HOUR_MS, 5 * HOUR_MS)))

    async def _extend(self, store: Backend) -> None:
        claims = list(self._held.values())[:3]
        held = await store.extend([Lease(claim.id, claim.token) for claim in claims], HOUR_MS)
        assert held <= {claim.id for claim in claims}

    async def _command(self, store: Backend) -> None:
        rng = self._rng
        tenant, name = rng.choice(TENANTS), rng.choice(list(CommandName))
        ids = sorted(self.accepted[tenant if rng.random() < 0.8 else rng.choice(TENANTS)])
        ids = rng.sample(ids, min(len(ids), rng.randint(1, 4)))
        command = Command(
            name=name,
            who="ada",
            delay_ms=rng.randrange(DAY_MS),
            resolution=rng.choice((Status.SENT, Status.FAILED)),
            new_ids={id: an_id() for id in ids} if name is CommandName.RESEND else {},
            batch_id=an_id(),
        )
        if name is not CommandName.RESEND and rng.random() < 0.3:
            result = await store.amend(tenant, Filter(), command, limit=rng.randint(1, 3))
            assert not result.refused
            assert not result.missing
        else:
            result = await store.amend(tenant, ids, command)
            assert {*result.applied, *result.requested, *result.refused, *result.missing} == set(ids)
        assert {*result.applied, *result.requested, *result.refused} <= self.accepted[tenant]
        self.accepted[tenant] |= set(result.resent.values())

    async def _receive(self, store: Backend) -> None:
        rng = self._rng
        batch = []
        for _ in range(rng.randint(1, 4)):
            provider, message_id = ("sendgrid", f"early-{rng.randrange(99)}")
            if self._messages and rng.random() < 0.9:
                provider, message_id = rng.choice(self._messages)
            event = rng.choice(list(ReceiptEvent))
            batch.append(
                a_receipt(
                    message_id,
                    event,
                    provider=provider,
                    event_id=f"{message_id}-{event}",
                    outcome=rng.choice(FAILURE_CLASSES),
                    retry_after_ms=rng.choice((None, HOUR_MS)),
                )
            )
        result = await store.receipt(batch)
        assert len(result.applied) + len(result.unchanged) + len(result.orphaned) == len(batch)

    async def _prune(self, store: Backend) -> None:
        limit = self._rng.randint(1, 5)
        assert all(number <= limit for number in (await store.prune(_RETENTION, limit)).values())
