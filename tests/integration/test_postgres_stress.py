"""Concurrent operations on PostgreSQL with dying connections; afterwards all counts must be correct.

Three stores, each with its own connections and its own cache, stand for three processes. A call without an
answer is repeated with the same arguments: finished work must be found, and never be done twice.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import asyncpg
import pytest

from homing.core.errors import StoreError
from homing.core.lifecycle.claims import Claim, Lease
from homing.core.lifecycle.commands import Command, CommandName
from homing.core.lifecycle.events import STATUS_CHANGED
from homing.core.lifecycle.outcomes import Settlement
from homing.core.lifecycle.receipts import Receipt, ReceiptEvent
from homing.core.notifications import Filter, Status
from homing.core.ports.stores import Retention
from homing.stores.postgres import PostgresStore
from homing.testing.builders import (
    HOUR_MS,
    a_claim_request,
    a_notification,
    a_receipt,
    a_submission,
    an_id,
    dead,
    in_doubt,
    postponed,
    retry_in,
    sent,
)
from homing.testing.store_suite.harness import subscribe

R = TypeVar("R")
STORES = 3
ROUNDS = 25
TENANTS = ("ada", "bob", "default")
PROVIDERS = ("acs", "sendgrid", "smtp")
AT_ONCE = (0, 0)
"""A reported failure has no backoff, so that nothing is left waiting at the end."""
CUTS = 0.06
"""The share of calls before which a connection is killed."""
_VICTIMS = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'homing' ORDER BY pid
"""

WRONG = {
    "in both tables": "SELECT count(*) FROM homing.live JOIN homing.settled USING (seq)",
    "in neither table": (
        "SELECT count(*) FROM homing.messages AS m WHERE NOT EXISTS "
        "(SELECT 1 FROM homing.states AS s WHERE s.seq = m.seq)"
    ),
    "without its message": (
        "SELECT count(*) FROM homing.states AS s WHERE NOT EXISTS "
        "(SELECT 1 FROM homing.messages AS m WHERE m.seq = s.seq)"
    ),
    "in a queue that does not exist": (
        "SELECT count(*) FROM homing.states AS s WHERE NOT EXISTS "
        "(SELECT 1 FROM homing.queues AS q WHERE q.id = s.queue)"
    ),
    "counted otherwise than it is": """
        SELECT count(*) FROM (
            SELECT tenant, status, attempts, count(*) AS number FROM homing.states GROUP BY 1, 2, 3) AS s
        FULL JOIN (SELECT * FROM homing.all_tallies WHERE count <> 0) AS t USING (tenant, status, attempts)
        WHERE s.number IS DISTINCT FROM t.count""",
    "with attempts that are not on record": """
        SELECT count(*) FROM homing.states AS s WHERE s.attempts <>
            (SELECT count(*) FROM homing.attempts AS a WHERE a.seq = s.seq)
            + (s.status = 'sending' AND NOT s.overdue)::integer""",
    "with an attempt on record twice": (
        "SELECT count(*) - count(DISTINCT (seq, number)) FROM homing.attempts"
    ),
    "due and not waiting, or leased and not sending": """
        SELECT count(*) FROM homing.states WHERE (due_at IS NOT NULL) <> (status IN ('pending', 'retrying'))
            OR (deadline_at IS NOT NULL) <> (due_at IS NOT NULL)
            OR (lease_until IS NOT NULL) <> (status = 'sending')""",
    "with a dedup key that was not accepted": "SELECT count(*) FROM homing.dedups WHERE accepted_at IS NULL",
    "accepted otherwise than summed": """
        SELECT (SELECT sum(accepted) FROM homing.all_roll_ups) - (SELECT count(*) FROM homing.messages)
            - (SELECT sum(purged) FROM homing.all_tallies)""",
    "attempted otherwise than summed": """
        SELECT (SELECT sum(attempts) FROM homing.all_roll_ups) - (SELECT count(*) FROM homing.attempts)
            - (SELECT sum(purged * attempts) FROM homing.all_tallies)""",
    **{
        f"{status} otherwise than told": f"""
        SELECT (SELECT sum({status}) FROM homing.all_roll_ups) - (SELECT count(*) FROM homing.sink_events
            WHERE payload::jsonb ->> 'status' = '{status}')"""
        for status in ("sent", "delivered", "failed")
    },
}


class Chaos:
    """Concurrent actors that share stores, randomness and known ids."""

    def __init__(self, stores: list[PostgresStore], admin: asyncpg.Connection[Any], seed: int) -> None:
        self.stores = stores
        self.admin = admin
        self.admin_free = asyncio.Lock()
        self.rng = random.Random(seed)
        self.accepted: list[tuple[str, str]] = []
        """(tenant, id)."""
        self.claimed: Counter[tuple[str, int]] = Counter()
        self.applied: Counter[tuple[str, int]] = Counter()
        self.messages: list[tuple[str, str]] = []
        """(provider, message id) of attempts that may have been made."""
        self.unanswered = 0

    @property
    def store(self) -> PostgresStore:
        return self.rng.choice(self.stores)

    async def call(self, what: Callable[[], Awaitable[R]]) -> R:
        """Repeats a call until it is answered."""
        for _ in range(100):
            if self.rng.random() < CUTS:
                await self.cut()
            try:
                return await what()
            except StoreError:
                self.unanswered += 1
        raise AssertionError("never an answer")

    async def cut(self) -> None:
        async with self.admin_free:
            victims = [pid for (pid,) in await self.admin.fetch(_VICTIMS)]
            if victims:
                await self.admin.fetchval("SELECT pg_terminate_backend($1)", self.rng.choice(victims))

    async def feed(self) -> None:
        for number in range(ROUNDS):
            tenant, provider = self.rng.choice(TENANTS), self.rng.choice(PROVIDERS)
            news = [
                a_notification(
                    provider=provider,
                    outlet=f"{provider}@{self.rng.randrange(6)}",
                    dedup_key=f"d-{self.rng.randrange(40)}" if self.rng.random() < 0.3 else None,
                    dedup_window_ms=HOUR_MS,
                    max_age_ms=self.rng.choice((1, HOUR_MS, HOUR_MS)),
                )
                for _ in range(self.rng.randrange(1, 9))
            ]
            key = f"k-{number}" if self.rng.random() < 0.5 else None
            submission = a_submission(*news, tenant=tenant, key=key)
            store = self.store
            [answer] = await self.call(lambda store=store, one=submission: store.accept([one]))  # type: ignore[misc]
            self.accepted += [(tenant, id) for id in answer.ids if id not in answer.duplicates]
            if key is not None and not answer.conflict:
                again = await self.call(lambda one=submission: self.store.accept([one]))  # type: ignore[misc]
                assert again[0].ids == answer.ids

    async def work(self, worker: str) -> None:
        for _ in range(ROUNDS):
            request = a_claim_request(worker=worker, slots=12, lease_ms=self.rng.choice((1, HOUR_MS)))
            batch = await self.call(lambda request=request: self.store.claim(request))  # type: ignore[misc]
            await self.deal_with(batch.claims)

    async def reap(self) -> None:
        for _ in range(ROUNDS):
            batch = await self.call(lambda: self.store.reclaim("reaper", 20, HOUR_MS))
            await self.deal_with(batch.claims)

    async def deal_with(self, claims: tuple[Claim, ...]) -> None:
        self.claimed.update((claim.id, claim.token) for claim in claims)
        moved = {c.id: self.rng.choice(PROVIDERS) for c in claims if self.rng.random() < 0.3}
        leases = [
            Lease(c.id, c.token, moved[c.id], f"{moved[c.id]}@{c.token}") for c in claims if c.id in moved
        ]
        if leases:
            await self.call(lambda: self.store.extend(leases, self.rng.choice((1, HOUR_MS))))
        settlements = [s for claim in claims if (s := self.outcome(claim)) is not None]
        self.rng.shuffle(settlements)
        if settlements:
            result = await self.call(lambda: self.store.settle(settlements))
            tokens = {settlement.id: settlement.token for settlement in settlements}
            self.applied.update((id, tokens[id]) for id in result.applied)

    def outcome(self, claim: Claim) -> Settlement | None:
        """Returns the settlement of an attempt, or None if the worker dies instead."""
        if claim.overdue:
            return postponed(claim, 0)
        message_id = f"m-{claim.id}-{claim.attempt}"
        self.messages.append((claim.provider, message_id))
        match self.rng.randrange(10):
            case 0 | 1 | 2:
                return sent(claim, bounce_ms=AT_ONCE)
            case 3 | 4:
                return retry_in(claim, 0, provider=self.rng.choice(PROVIDERS), message_id=message_id)
            case 5:
                return dead(claim, message_id=message_id)
            case 6:
                return in_doubt(claim, message_id, bounce_ms=AT_ONCE)
            case 7:
                return postponed(claim, 0)
            case _:
                return None

    async def command(self) -> None:
        for _ in range(ROUNDS):
            tenant = self.rng.choice(TENANTS)
            name = self.rng.choice(
                (CommandName.CANCEL, CommandName.RETRY, CommandName.ACKNOWLEDGE, CommandName.RESEND)
            )
            ids = [id for owner, id in self.accepted if owner == tenant]
            chosen = self.rng.sample(ids, min(5, len(ids)))
            command = Command(
                name=name,
                who="eve",
                new_ids={id: an_id() for id in chosen},
                batch_id="again",
                max_age_ms=HOUR_MS,
            )
            target = chosen if name is CommandName.RESEND or self.rng.random() < 0.7 else Filter()
            result = await self.call(
                lambda t=tenant, ids=target, c=command: self.store.amend(t, ids, c, limit=10)  # type: ignore[misc]
            )
            self.accepted += [(tenant, id) for id in result.resent.values()]

    async def handle_callback(self) -> None:
        for _ in range(ROUNDS):
            count = min(6, len(self.messages))
            receipts: list[Receipt] = []
            for provider, message_id in self.rng.sample(self.messages, count):
                event = self.rng.choice((ReceiptEvent.DELIVERED, ReceiptEvent.FAILED, ReceiptEvent.OPEN))
                receipts.append(
                    a_receipt(message_id, event, provider=provider, event_id=f"{event}-{message_id}")
                )
            await self.call(lambda heard=receipts: self.store.receipt(heard))  # type: ignore[misc]

    async def keep_up(self) -> None:
        kept = Retention(delivered_ms=0, sent_ms=HOUR_MS, others_ms=HOUR_MS, keys_ms=HOUR_MS)
        for _ in range(ROUNDS):
            await self.call(lambda: self.store.prune(kept, 5))

    async def end_everything(self) -> None:
        """Claims or reclaims everything until all notifications have ended."""
        await self.admin.execute("UPDATE homing.live SET lease_until = 1 WHERE lease_until IS NOT NULL")
        for _ in range(200):
            claims = [
                *(await self.store.reclaim("last", 500, HOUR_MS)).claims,
                *(await self.store.claim(a_claim_request(worker="last"))).claims,
            ]
            if not claims:
                break
            await self.store.settle(
                [postponed(c, 0) if c.overdue else sent(c, bounce_ms=AT_ONCE) for c in claims]
            )
            # Rows past their deadline would otherwise be claimed for ever.
            await self.admin.execute(
                "UPDATE homing.live SET deadline_at = 9e15 WHERE deadline_at IS NOT NULL"
            )

    async def wrong(self) -> dict[str, int]:
        """Returns what is wrong, and how often."""
        found = {name: await self.admin.fetchval(sql) for name, sql in WRONG.items()}
        return {name: number for name, number in found.items() if number}


@pytest.fixture
async def admin(postgres_url: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


@pytest.fixture
async def stores(postgres_url: str) -> AsyncIterator[list[PostgresStore]]:
    stores = [PostgresStore(f"{postgres_url}?pool_size=4") for _ in range(STORES)]
    for store in stores:
        await store.open()
    await stores[0].migrate()
    await subscribe(stores[0], STATUS_CHANGED)
    yield stores
    for store in stores:
        await store.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_all_counts_are_correct_after_any_concurrent_operations(
    stores: list[PostgresStore], admin: asyncpg.Connection[Any], seed: int
) -> None:
    chaos = Chaos(stores, admin, seed)
    await asyncio.gather(
        *(chaos.feed() for _ in range(2)),
        *(chaos.work(f"w-{number}") for number in range(3)),
        *(chaos.reap() for _ in range(2)),
        *(chaos.command() for _ in range(2)),
        *(chaos.handle_callback() for _ in range(2)),
        *(chaos.keep_up() for _ in range(2)),
    )
    assert chaos.unanswered, "connections were cut, but no call failed"
    assert await chaos.wrong() == {}
    assert [pair for pair, times in chaos.claimed.items() if times > 1] == [], "two leases with one token"
    assert [pair for pair, times in chaos.applied.items() if times > 1] == [], "settled twice"
    assert len(set(chaos.accepted)) == len(chaos.accepted), "accepted twice"
    await chaos.end_everything()
    assert await chaos.wrong() == {}
    left = {tally.status for tally in await stores[0].tallies(None) if tally.count}
    assert left.isdisjoint({Status.PENDING, Status.SENDING, Status.RETRYING})
