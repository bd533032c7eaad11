"""The memory store with a check after each of its commits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from homing.core.lifecycle.claims import Acceptance, ClaimBatch, ClaimRequest, Lease, Submission
from homing.core.lifecycle.commands import AmendResult, Command
from homing.core.lifecycle.events import Event
from homing.core.lifecycle.outcomes import RegistryPut, Settlement, SettleResult
from homing.core.lifecycle.receipts import Receipt, ReceiptResult
from homing.core.lifecycle.rows import Change
from homing.core.notifications import Filter, History, Page
from homing.core.ports.runtime import Clock
from homing.core.ports.stores import Entry, SinkRegistration
from homing.core.routing.breaker import Breaker
from homing.core.statistics import Tally
from homing.stores.memory import MemoryStore
from homing.stores.memory_schedule import Kept, Place

if TYPE_CHECKING:
    from collections.abc import Iterable

    from simulation.invariants import InvariantChecker


class CheckedStore(MemoryStore):
    """A memory store that reports every change of a row, and every result, to the invariant checker."""

    def __init__(self, clock: Clock, watch: InvariantChecker) -> None:
        super().__init__(clock)
        self.watch = watch
        self.caller = "sim"
        """Name of the process whose call is being executed."""
        self._serving = ""

    def trace(self, who: str, what: str) -> None:
        """Adds a line to the trace."""
        self.watch.state.note(who, what)

    def row_of(self, id: str) -> Kept | None:
        """Returns the stored row, or None if it does not exist."""
        return self._kept.get(id)

    def live(self) -> list[Kept]:
        """Returns the rows that are waiting or leased."""
        return [kept for kept in self._kept.values() if kept.row.due_at or kept.row.lease_until]

    def cells(self, tenant: str) -> Mapping[tuple[str, int], int]:
        """Returns the number of rows by (status, attempts).

        The result is not a copy, because it is read after every commit.
        """
        return self._ledger._cells.get(tenant, {})

    def read_tallies(self, tenant: str) -> tuple[Tally, ...]:
        """Returns the counts that statistics show, including those of purged rows."""
        return self._ledger.tallies(tenant)

    def unpublished(self) -> int:
        """Returns the number of events in the outbox."""
        return len(self._outbox)

    async def accept(self, batch: Sequence[Submission], *, tx: Any = None) -> tuple[Acceptance, ...]:
        self._serving = "accept"
        answers = await super().accept(batch, tx=tx)
        self.watch.accepted(batch, answers)
        return answers

    async def claim(self, request: ClaimRequest) -> ClaimBatch:
        self._serving = "claim"
        batch = await super().claim(request)
        self.watch.in_time(batch)
        self.watch.done({claim.tenant for claim in batch.claims})
        return batch

    async def reclaim(self, worker: str, limit: int, lease_ms: int) -> ClaimBatch:
        self._serving = "reclaim"
        batch = await super().reclaim(worker, limit, lease_ms)
        self.watch.done({claim.tenant for claim in batch.claims})
        return batch

    async def extend(self, leases: Sequence[Lease], lease_ms: int) -> frozenset[str]:
        held = await super().extend(leases, lease_ms)
        self.watch.extended(self.caller, leases, held)
        return held

    async def settle(self, batch: Sequence[Settlement]) -> SettleResult:
        self._serving = "settle"
        result = await super().settle(batch)
        self.watch.settled_batch(batch, result)
        return result

    async def amend(
        self, tenant: str, target: Sequence[str] | Filter, command: Command, *, limit: int = 1000
    ) -> AmendResult:
        self._serving = "amend"
        result = await super().amend(tenant, target, command, limit=limit)
        self.watch.amended(tenant, result)
        return result

    async def receipt(self, batch: Sequence[Receipt]) -> ReceiptResult:
        self._serving = "receipt"
        result = await super().receipt(batch)
        self.watch.received(self.caller, batch, result)
        return result

    async def get(self, tenant: str, id: str) -> History | None:
        history = await super().get(tenant, id)
        if history is not None:
            self.watch.read(tenant, (history.notification,))
        return history

    async def list(self, tenant: str, filter: Filter, *, limit: int = 50, cursor: str | None = None) -> Page:
        page = await super().list(tenant, filter, limit=limit, cursor=cursor)
        self.watch.read(tenant, page.items)
        return page

    async def waiting(self, tenant: str, *, limit: int = 50, ready: bool | None = None) -> Page:
        page = await super().waiting(tenant, limit=limit, ready=ready)
        self.watch.read(tenant, page.items)
        return page

    async def put(self, entries: Sequence[Entry], *, who: str) -> tuple[Entry, ...] | None:
        written = await super().put(entries, who=who)
        if written is not None:
            for entry in entries:
                self.watch.directory.filed(entry.tenant, entry.kind, entry.key, entry.value)
        return written

    async def delete(self, tenant: str, kind: str, keys: Sequence[str]) -> int:
        for key in keys:
            self.watch.directory.filed(tenant, kind, key, None)
        return await super().delete(tenant, kind, keys)

    async def put_breaker(self, provider: str, breaker: Breaker) -> bool:
        before = self._breakers.get(provider) or Breaker()
        put = await super().put_breaker(provider, breaker)
        self.watch.breaker_put(self.caller, provider, before, breaker, put)
        return put

    def _write(self, puts: Iterable[RegistryPut]) -> None:
        puts = tuple(puts)
        super()._write(puts)
        for put in puts:
            self.watch.directory.merged(put.tenant, put.kind, put.key, put.value)

    def _settle(self, kept: Kept, settlement: Settlement, now: int) -> bool:
        expected = self.watch.settling(self.caller, settlement)
        applied = super()._settle(kept, settlement, now)
        self.watch.settled(settlement, expected, applied)
        return applied

    def _commit(self, kept: Kept, change: Change, was: Place) -> None:
        super()._commit(kept, change, was)
        self.watch.changed(self._serving, self.caller, kept, change)

    def _publish(self, events: Sequence[Event]) -> None:
        self.watch.events.committed(events)
        super()._publish(events)

    async def register_sink(self, sink: SinkRegistration) -> None:
        self.watch.events.registered(self.caller, sink)
        await super().register_sink(sink)

    async def remove_sink(self, name: str) -> int | None:
        self.watch.events.sink_removed(self.caller, name)
        return await super().remove_sink(name)

    def _remove(self, kept: Kept) -> None:
        super()._remove(kept)
        self.watch.removed(kept)
