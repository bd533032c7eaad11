"""The audit trail on a store: concurrent appends, newest first, verification."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from homing.core.access.audit import AUDIT, ChainFaultKind, audit_key
from homing.core.access.scopes import Caller, Scope
from homing.core.errors import InvalidRequest, StoreError, StoreUnavailable
from homing.core.ports.stores import Entry
from homing.engine.access.audit import AuditTrail, VerificationStep
from homing.engine.access.tenants import Tenants
from homing.stores.sqlite import SqliteStore
from homing.stores.sqlite.memory_database import MemoryDatabase
from homing.testing.manual_clock import ManualClock


class TamperableStore(SqliteStore):
    """Counts its writes, can be unavailable, and lets a test tamper with its entries."""

    def __init__(self, clock: ManualClock) -> None:
        self._database = MemoryDatabase()
        super().__init__(self._database, clock=clock.now_ms)
        self.writes = 0
        self.away = False

    async def put(self, entries: Sequence[Entry], *, who: str) -> tuple[Entry, ...] | None:
        await asyncio.sleep(0)
        if self.away:
            raise StoreUnavailable
        self.writes += 1
        return await super().put(entries, who=who)

    def rewrite(self, tenant: str, kind: str, key: str, **fields: object) -> None:
        self._execute(
            "UPDATE homing_registry SET value = json_patch(value, ?) WHERE (tenant, kind, key) = (?, ?, ?)",
            msgspec.json.encode(fields).decode(),
            *(tenant, kind, key),
        )

    def tear_out(self, tenant: str, kind: str, key: str) -> None:
        self._execute("DELETE FROM homing_registry WHERE (tenant, kind, key) = (?, ?, ?)", tenant, kind, key)

    def _execute(self, sql: str, *parameters: str) -> None:
        assert self._database.connection.execute(sql, parameters).rowcount == 1


def caller(tenant: str = "acme", who: str = "key:1") -> Caller:
    return Caller(tenant=tenant, who=who, scopes=frozenset({Scope.ADMIN}))


@pytest.fixture
def book() -> TamperableStore:
    return TamperableStore(ManualClock())


@pytest.fixture
def trail(book: TamperableStore) -> AuditTrail:
    return trail_over(book)


def trail_over(book: TamperableStore) -> AuditTrail:
    """Returns the audit trail of another process."""
    clock = ManualClock()
    return AuditTrail(book, Tenants(book, clock), clock)


async def note(trail: AuditTrail, count: int, tenant: str = "acme") -> None:
    for number in range(count):
        await trail.note(caller(tenant), "recipient.put", f"r{number}", {"n": number})


async def verified(
    trail: AuditTrail, tenant: str = "acme", heads: Sequence[str] = ()
) -> list[VerificationStep]:
    return [step async for step in trail.verify(tenant, heads)]


async def test_entries_are_read_newest_first_page_by_page(trail: AuditTrail) -> None:
    await note(trail, 5)
    page = await trail.list("acme", limit=2)
    assert [one.target for one in page.items] == ["r4", "r3"]
    rest = await trail.list("acme", cursor=page.cursor, limit=3)
    assert [one.number for one in rest.items] == [3, 2, 1]
    assert rest.cursor is None
    assert (page.items[0].who, page.items[0].action, page.items[0].detail) == (
        "key:1",
        "recipient.put",
        {"n": 4},
    )
    with pytest.raises(InvalidRequest, match="cursor"):
        await trail.list("acme", cursor="made up")


async def test_each_tenant_has_its_own_chain_and_global_entries_have_one(trail: AuditTrail) -> None:
    await note(trail, 2)
    await note(trail, 1, "other")
    await trail.note(caller(), "policy.set", "rule", {})
    await trail.note(caller("other"), "provider.open", "twilio", {})
    assert await trail.chains() == ("*", "acme", "other")
    assert [one.target for one in (await trail.list("*")).items] == ["twilio", "rule"]
    assert [one.target for one in (await trail.list("other")).items] == ["r0"]
    assert (await trail.list("nobody")).items == ()


async def test_concurrent_entries_share_a_write_and_keep_their_order(
    book: TamperableStore, trail: AuditTrail
) -> None:
    await asyncio.gather(*(trail.note(caller("ab"[n % 2]), "recipient.put", f"r{n}", {}) for n in range(100)))
    assert book.writes <= 2
    for tenant, first in (("a", 0), ("b", 1)):
        found = (await trail.list(tenant, limit=100)).items
        assert [one.target for one in reversed(found)] == [f"r{n}" for n in range(first, 100, 2)]
        [done] = await verified(trail, tenant)
        assert (done.done, done.entries, done.faults) == (True, 50, ())


async def test_several_processes_append_to_one_chain(book: TamperableStore) -> None:
    trails = [trail_over(book) for _ in range(4)]
    await asyncio.gather(*(note(trail, 20) for trail in trails))
    [done] = await verified(trails[0])
    assert (done.entries, done.faults, done.head.number) == (80, (), 80)


async def test_an_entry_that_cannot_be_written_raises_and_the_next_one_succeeds(
    book: TamperableStore, trail: AuditTrail
) -> None:
    book.away = True
    with pytest.raises(StoreUnavailable):
        await note(trail, 1)
    book.away = False
    await note(trail, 1)
    assert len((await trail.list("acme")).items) == 1


async def test_an_entry_with_an_invalid_detail_fails_alone(trail: AuditTrail) -> None:
    bad, good = await asyncio.gather(
        trail.note(caller(), "recipient.put", "bad", {"it": object()}),
        trail.note(caller(), "recipient.put", "good", {}),
        return_exceptions=True,
    )
    assert isinstance(bad, TypeError)
    assert good is None
    assert [one.target for one in (await trail.list("acme")).items] == ["good"]


async def test_a_cancelled_caller_does_not_cancel_the_others(trail: AuditTrail) -> None:
    gone = asyncio.create_task(note(trail, 1))
    stays = asyncio.create_task(trail.note(caller(), "recipient.put", "stays", {}))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait([gone])
    await stays
    assert "stays" in [one.target for one in (await trail.list("acme")).items]


async def test_a_long_chain_is_verified_in_steps_that_report_progress(trail: AuditTrail) -> None:
    await asyncio.gather(*(trail.note(caller(), "recipient.put", f"r{n}", {}) for n in range(1200)))
    steps = await verified(trail)
    assert [step.entries for step in steps] == [500, 1000, 1200]
    assert [step.done for step in steps] == [False, False, True]
    assert {step.head.number for step in steps} == {1200}


async def test_changed_and_removed_entries_are_reported(book: TamperableStore, trail: AuditTrail) -> None:
    await note(trail, 9)
    book.rewrite("acme", AUDIT, audit_key(4), who="nobody")
    book.tear_out("acme", AUDIT, audit_key(7))
    [done] = await verified(trail)
    assert [(fault.kind, fault.number) for fault in done.faults] == [
        (ChainFaultKind.REMOVED, 7),
        (ChainFaultKind.CHANGED, 4),
    ]


async def test_a_head_that_was_moved_back_removed_or_corrupted_is_detected(
    book: TamperableStore, trail: AuditTrail
) -> None:
    await note(trail, 4)
    third = (await trail.list("acme")).items[1]
    book.rewrite("*", "audit_head", "acme", number=3, hash=third.hash)
    [done] = await verified(trail)
    assert [(fault.kind, fault.number) for fault in done.faults] == [(ChainFaultKind.INSERTED, 4)]
    book.rewrite("*", "audit_head", "acme", number="many")
    lost, done = await verified(trail)
    assert [fault.kind for fault in (*lost.faults, *done.faults)] == [ChainFaultKind.CHANGED]
    with pytest.raises(StoreError, match="audit verify"):
        await note(trail, 1)
    book.tear_out("*", "audit_head", "acme")
    await trail.note(caller(), "tenant.create", "acme", {})
    await Tenants(book, ManualClock()).create("acme", who="ada")
    assert await trail.chains() == ("*", "acme"), "it is missed although its head is gone"
    lost, done = await verified(trail)
    assert [fault.kind for fault in (*lost.faults, *done.faults)] == [ChainFaultKind.REMOVED]
    with pytest.raises(StoreError, match="audit verify"):
        await note(trail, 1)


async def test_a_hash_kept_elsewhere_is_found_or_reported_as_missing(
    book: TamperableStore, trail: AuditTrail
) -> None:
    await note(trail, 3)
    kept = (await trail.list("acme")).items[0].hash
    await note(trail, 2)
    assert (await verified(trail, heads=[kept]))[-1].seen == (kept,)
    assert (await verified(trail, heads=["0" * 64]))[-1].seen == ()


async def test_entries_written_during_a_verification_do_not_disturb_it(trail: AuditTrail) -> None:
    await asyncio.gather(*(trail.note(caller(), "recipient.put", f"r{n}", {}) for n in range(600)))
    steps = []
    async for step in trail.verify("acme"):
        steps.append(step)
        await note(trail, 3)
    assert [fault for step in steps for fault in step.faults] == []
    assert steps[-1].entries == 600
