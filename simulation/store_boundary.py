"""A simulated process's connection to the store, with the faults of a network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from msgspec.structs import replace

from homing.core.errors import StoreUnavailable
from homing.core.lifecycle.claims import Acceptance, ClaimBatch, ClaimRequest, Submission
from homing.core.lifecycle.commands import AmendResult, Command
from homing.core.lifecycle.events import Event
from homing.core.lifecycle.outcomes import Settlement, SettleResult
from homing.core.ports.stores import AcceptedEntry, Entry, InboxAcceptance, InboxEntry, RetryRule
from homing.core.routing.breaker import Breaker
from homing.testing.store_interception import intercept_operations
from simulation.checkers.store import CheckedStore
from simulation.database import StatementFault
from simulation.plan import FaultPlan
from simulation.poison import ScriptedInbox

if TYPE_CHECKING:
    from simulation.invariants import InvariantChecker

_T = TypeVar("_T")

_FAULTY_STATEMENTS = 16
"""A fault strikes one of the first 16 statements of a call. If the call has fewer, it may strike none."""


class FaultyStoreOwner(Protocol):
    """The simulated process that uses the store."""

    name: str
    dead: bool

    def crash(self, why: str) -> None: ...
    def store_is_away(self, operation: str) -> bool: ...


@intercept_operations
class FaultyStore(CheckedStore):
    """The store of one simulated process, which injects faults.

    Before or after the database has executed a call, the call may fail or be delayed, or the process may
    crash. Calls of a dead process are cancelled before they reach the database.
    """

    def __init__(
        self, host: FaultyStoreOwner, watch: InvariantChecker, fault_plan: FaultPlan, rng: Random
    ) -> None:
        super().__init__(watch.database, watch.state.clock, watch, host.name)
        self._host = host
        self._rng = rng
        self.fault_plan = fault_plan

    async def close(self) -> None:
        """Does nothing: the other processes still use the database."""

    @property
    def hears(self) -> bool:
        return self.watch.state.plan.is_notified

    async def listen(self, wake: Callable[[], None], wake_inbox: Callable[[], None]) -> None:
        """Never wakes the worker. A lost wake-up may delay work, but must not do other harm."""

    # What the process learns from a result -------------------------------------------------------

    async def claim(self, request: ClaimRequest) -> ClaimBatch:
        self.watch.sends.asks_to_claim(self._host.name)
        batch = await self._intercept("claim", partial(super().claim, request))
        if request.limit is not None and len(batch.claims) > request.limit:
            said = f"claimed {len(batch.claims)} rows with a limit of {request.limit}"
            self.watch.state.violate("13", said)
        self.watch.sends.received(batch)
        return batch

    async def accept(self, batch: Sequence[Submission], *, tx: Any = None) -> tuple[Acceptance, ...]:
        answers = await self._intercept("accept", partial(super().accept, batch, tx=tx))
        self.watch.loss_reports.acknowledged(self._host.name, answers)
        return answers

    async def emit(self, events: Sequence[Event]) -> None:
        await self._intercept("emit", partial(super().emit, events))
        self.watch.loss_reports.emitted(self._host.name, events)

    async def settle(self, settlements: Sequence[Settlement]) -> SettleResult:
        self.watch.tries_to_settle(settlements)
        try:
            result = await self._intercept("settle", partial(super().settle, settlements))
        except StoreUnavailable:
            self.watch.sends.could_not_settle(self._host.name, settlements)
            raise
        self.watch.sends.could_settle(self._host.name)
        return result

    async def list_entries(
        self, tenant: str, kind: str, *, prefix: str = "", after: str = "", limit: int = 100
    ) -> tuple[Entry, ...]:
        read = partial(super().list_entries, tenant, kind, prefix=prefix, after=after, limit=limit)
        if kind != "policy":
            return await self._intercept("list_entries", read)
        number = self.watch.policies.begin_read(self._host.name)
        entries = await self._intercept("list_entries", read)
        self.watch.policies.read(self._host.name, number, entries)
        return entries

    async def breakers(self) -> dict[str, Breaker]:
        read = super().breakers

        async def perform() -> tuple[dict[str, Breaker], int]:
            return await read(), self.watch.state.rollbacks

        found, losses = await self._intercept("breakers", perform)
        self.watch.breakers.read(self._host.name, found, losses)
        return found

    async def put_breaker(self, provider: str, breaker: Breaker) -> bool:
        put = await self._intercept("put_breaker", partial(super().put_breaker, provider, breaker))
        if put:
            stored = replace(breaker, version=breaker.version + 1)
            self.watch.breakers.known(self._host.name, provider, stored)
        else:
            self.watch.breakers.refused(self._host.name, provider)
        return put

    # Faults --------------------------------------------------------------------------------------

    async def _intercept(self, operation: str, perform: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        await self._travel(operation, "before")
        fault = self._next_fault()
        if fault is None:
            answer = await perform()  # one transaction, because a store in memory never awaits
        else:
            with self.failing(fault, operation):
                answer = await perform()
        await self._travel(operation, "after")
        return answer

    def _next_fault(self) -> StatementFault | None:
        """Draws whether a statement of the next call fails, and which one."""
        share = self.fault_plan.statement_error_per_call
        if not share or self._rng.random() >= share:
            return None
        statement = 0 if self._rng.random() < 0.3 else self._rng.randrange(1, _FAULTY_STATEMENTS + 1)
        return StatementFault(statement, full=self._rng.random() < 0.5)

    async def _travel(self, name: str, leg: str) -> None:
        """Simulates the request or the response. One random number decides which fault occurs, if any."""
        self._alive()
        drawn, fault_plan = self._rng.random(), self.fault_plan
        waits = leg == "before" and name == "claim" and fault_plan.slow_claim_per_call
        if waits and self._rng.random() < fault_plan.slow_claim_per_call:
            await self._take_ms(self._rng.randrange(1_000, 10_000))
        if leg == "before" and self._host.store_is_away(name):
            await self._fail(name, leg)
        if drawn > 0.6:
            await self._take_ms(int(8 * (drawn - 0.6)) + 1)
            return
        drawn -= fault_plan.crash_per_call / 2
        if drawn < 0:
            self._host.crash(f"{leg} {name}")
            self._alive()
        drawn -= fault_plan.error_per_call / 2
        if drawn < 0:
            await self._fail(name, leg)
        drawn -= fault_plan.slow_per_call / 2
        if drawn < 0:
            await self._take_ms(self._rng.randrange(100, fault_plan.longest_slow_ms))

    async def _fail(self, name: str, leg: str) -> NoReturn:
        await self._take_ms(self._rng.randrange(1, 100))
        self.trace(self._host.name, f"store error {leg} {name}")
        raise StoreUnavailable(f"simulated store error {leg} {name}")

    async def _take_ms(self, duration_ms: int) -> None:
        await asyncio.sleep(duration_ms / 1000)
        self._alive()

    def _alive(self) -> None:
        if self._host.dead:
            raise asyncio.CancelledError("the process is dead")


class FaultyInboxStore(FaultyStore):
    """The store of a simulated process, with a scripted inbox."""

    def __init__(
        self,
        host: FaultyStoreOwner,
        watch: InvariantChecker,
        fault_plan: FaultPlan,
        rng: Random,
        inbox: ScriptedInbox,
    ) -> None:
        super().__init__(host, watch, fault_plan, rng)
        self._inbox = inbox

    async def take_inbox(self, limit: int, lease_ms: int) -> tuple[InboxEntry, ...]:
        """Leases the oldest entries."""

        async def take() -> tuple[InboxEntry, ...]:
            return self._inbox.take(limit, self.watch.state.ms)

        return await self._intercept("take_inbox", take)

    async def count_inbox(self, tenant: str | None) -> int:
        """Returns the number of entries, all of which belong to one tenant."""
        return self._inbox.waiting

    async def accept_inbox(self, batch: Sequence[AcceptedEntry]) -> InboxAcceptance:
        """Accepts the entries that still exist, and removes them with the commit."""

        async def accept() -> InboxAcceptance:
            kept = self._inbox.submissions(batch)
            if kept:
                await CheckedStore.accept(self, kept)
            self._inbox.remove([one.entry for one in batch])
            return InboxAcceptance(len(kept))

        return await self._intercept("accept_inbox", accept)

    async def amend_inbox(self, entry: InboxEntry, command: Command) -> AmendResult | None:
        """Is not called, because the script writes no commands."""
        return None

    async def remove_inbox(self, entries: Sequence[InboxEntry]) -> None:
        """Removes entries."""
        self._inbox.remove(entries)

    async def store_retry_delays(self, delays_ms: Sequence[int], rules: Sequence[RetryRule] = ()) -> None:
        """Does nothing: there are no SQL functions."""
