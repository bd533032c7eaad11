"""Simulated providers, which accept, refuse, throttle, hang and send receipts as their seed decides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from functools import partial
from random import Random
from typing import Any, Protocol

from msgspec import Struct

from homing.core.lifecycle.outcomes import Outcome
from homing.core.lifecycle.receipts import Receipt, ReceiptEvent
from homing.core.notifications import OutcomeKind
from homing.core.ports.providers import Delivery, OnOutcomes
from homing.core.routing.failover import Route
from homing.engine.plug_in_calls import is_cancelled
from homing.providers.local.function import FunctionProvider
from homing.rehearsal.virtual_time import VirtualBlock, VirtualBlockingCalls
from simulation.checkers.reported_failures import bounce_code
from simulation.invariants import InvariantChecker
from simulation.plan import FaultPlan, SimulatedProviderPlan
from simulation.poison import poisoned_outcome
from simulation.shadow_state import ProviderCall

_ENDLESS_S = 10_000_000

_HOUR_MS = 3_600_000


_FAILURE_WEIGHTS: dict[str, int] = {
    "transient": 30,
    "throttled": 14,
    "provider_fault": 5,
    "bad_content": 2,
    "unlisted": 6,
    "bad_recipient": 3,
    "dead_address": 2,
    "opted_out": 2,
    "hang": 8,
    "accept and hang": 8,
    "accept and disconnect": 6,
    "accept, return the id, and disconnect": 5,
    "raise": 4,
    "nonsense": 2,
    "slow": 9,
}
"""Kinds of failures of a send, with their relative frequencies."""


_AWAY_KINDS = (
    OutcomeKind.TRANSIENT,
    OutcomeKind.THROTTLED,
    OutcomeKind.PROVIDER_FAULT,
    OutcomeKind.AMBIGUOUS,
)
"""Outcomes of a broker that is away, is full, refuses the login, or did not confirm."""

_OUTAGE_KINDS = ("transient", "transient", "hang", "throttled", "provider_fault", "raise", "unlisted")


E = ReceiptEvent

_RECEIPT_SEQUENCES: tuple[tuple[int, tuple[ReceiptEvent, ...]], ...] = (
    (30, ()),
    (20, (E.DELIVERED,)),
    (15, (E.QUEUED, E.SENT, E.DELIVERED)),
    (5, (E.DELIVERED, E.SENT, E.QUEUED)),
    (10, (E.SENT, E.FAILED)),
    (6, (E.FAILED,)),
    (4, (E.FAILED, E.DELIVERED)),
    (3, (E.DELIVERED, E.SPAM_REPORT)),
    (3, (E.OPEN, E.DELIVERED, E.CLICK, E.OPEN)),
    (2, (E.DELIVERED, E.UNSUBSCRIBE)),
)
"""Sequences of receipts for an accepted message, with their relative frequencies. Each receipt has its own
delay."""


_REPORTED_FAILURE_WEIGHTS: dict[OutcomeKind | None, int] = {
    OutcomeKind.TRANSIENT: 6,
    OutcomeKind.THROTTLED: 2,
    OutcomeKind.PROVIDER_FAULT: 3,
    OutcomeKind.BAD_CONTENT: 2,
    OutcomeKind.BAD_RECIPIENT: 2,
    OutcomeKind.DEAD_ADDRESS: 1,
    OutcomeKind.OPTED_OUT: 1,
    OutcomeKind.AMBIGUOUS: 1,
    None: 6,
}
"""Classes of reported failures, with their relative frequencies. None stands for an unknown error code."""


class CallingProcess(Protocol):
    """The process that calls a provider."""

    name: str
    dead: bool


class SimulatedOutage(Struct, frozen=True):
    """A period in which every send fails in the same way."""

    until_ms: int
    kind: str


class SimulatedProvider:
    """One simulated provider. Each process calls it through its own `SimulatedProviderClient`."""

    def __init__(
        self,
        plan: SimulatedProviderPlan,
        *,
        fault_plan: FaultPlan,
        rng: Random,
        watch: InvariantChecker,
        report: Callable[[int, Receipt], None],
        route_of: Callable[[Delivery], Route],
    ) -> None:
        self.plan = plan
        self.fault_plan = fault_plan
        self._rng = rng
        self._watch = watch
        self.poisons = watch.state.plan.poison
        """True if some of its errors have a text that the store refuses."""
        self._report = report
        self._route_of = route_of
        self._messages = 0
        self._open: dict[tuple[str, int], ProviderCall] = {}
        """Key of the call → call, until the call is over. See `_call_key`."""
        self._taken: dict[tuple[str, int], str] = {}
        """(notification id, attempt) → id of the message that the attempt created."""
        self.outage: SimulatedOutage | None = None

    def begin(self, caller: CallingProcess, delivery: Delivery) -> None:
        """Records that a send begins."""
        call = self._watch.send_begins(caller.name, self.plan.id, delivery)
        self._open[_call_key(caller, delivery)] = call

    async def serve(self, caller: CallingProcess, delivery: Delivery) -> object:
        """Simulates one send and returns its result, which need not be an `Outcome`."""
        if _call_key(caller, delivery) not in self._open:
            self.begin(caller, delivery)
        outcome: Outcome | None = None
        alive = True
        try:
            if self.fault_plan.misbehave and self._rng.random() < self.fault_plan.misbehave:
                answer: object = await self._misbehave(caller, delivery)
            else:
                answer = await self._answer(delivery)
            outcome = answer if isinstance(answer, Outcome) else None
            return answer
        except asyncio.CancelledError:
            alive = not caller.dead
            call = self._open.get(_call_key(caller, delivery))
            if call is not None:
                call.aborted = is_cancelled()
            raise
        finally:
            self._end(caller, delivery, outcome, alive=alive and not caller.dead)

    async def serve_blocking(self, caller: CallingProcess, delivery: Delivery) -> object:
        """Simulates one call of a plain function, which returns some time after its timeout at the latest."""
        longest_ms = delivery.timeout_ms + self._rng.randrange(100, 60_000)
        answer = asyncio.ensure_future(self._answer(delivery))
        outcome: Outcome | None = None
        try:
            await asyncio.wait({answer}, timeout=longest_ms / 1000)
            if not answer.done():
                return "too late"
            outcome = _outcome_of_function(answer)
            return answer.result()
        finally:
            answer.cancel()
            self._end(caller, delivery, outcome, alive=not caller.dead)

    def expire(self, caller: CallingProcess, delivery: Delivery) -> None:
        """Records that the attempt has ended for its process, while the call goes on."""
        call = self._open.get(_call_key(caller, delivery))
        if call is not None and not call.expired and not caller.dead:
            self._watch.send_expires(call)

    def give_up(self, caller: CallingProcess, delivery: Delivery) -> None:
        """Ends a call for its process at once. The cancelled task itself ends in the next loop iteration."""
        self._end(caller, delivery, None, alive=not caller.dead)

    def healthy(self) -> bool:
        return self._now_outage() is None or self._rng.random() < 0.1

    def look_up(self, delivery: Delivery) -> Receipt | None:
        """Returns a receipt if the provider has the attempt's message and no outage, else None."""
        message = self._taken.get((delivery.notification_id, delivery.attempt))
        self._watch.state.note("sim", f"look up {delivery.notification_id[-12:]} at {self.plan.id}")
        if message is None or self._now_outage() is not None:
            return None
        return self._receipt(delivery, message, E.SENT, f"{message}-asked")

    def _end(
        self, caller: CallingProcess, delivery: Delivery, outcome: Outcome | None, *, alive: bool
    ) -> None:
        call = self._open.pop(_call_key(caller, delivery), None)
        if call is not None and call.expired:
            self._watch.send_returns(call)
        elif call is not None:
            self._watch.send_ends(call, outcome, received=alive)

    async def _misbehave(self, caller: CallingProcess, delivery: Delivery) -> Outcome:
        """Accepts the message, and then exits, cancels itself, or ignores its cancellation for a while."""
        message, kind = self._take(delivery), self._rng.choice(("exit", "cancel itself", "ignore"))
        until_ms = self._watch.state.ms + delivery.timeout_ms + self._rng.randrange(100, 60_000)
        if kind == "exit":
            raise SystemExit(3)
        if kind == "cancel itself":
            raise asyncio.CancelledError
        while (left_ms := until_ms - self._watch.state.ms) > 0:
            try:
                await asyncio.sleep(left_ms / 1000)
            except asyncio.CancelledError:
                if caller.dead:
                    raise
                self.expire(caller, delivery)
        return Outcome(OutcomeKind.ACCEPTED, provider_message_id=message)

    async def _answer(self, delivery: Delivery) -> object:
        kind, latency_ms = self._kind(delivery), self._rng.choice((5, 30, 30, 200, 600))
        if self.plan.latency_ms is not None:
            latency_ms = self.plan.latency_ms
        if kind in (
            "accept",
            "accept and hang",
            "accept and disconnect",
            "accept, return the id, and disconnect",
            "slow",
        ):
            message = self._take(delivery)
        if kind == "slow":
            latency_ms = self._rng.randrange(500, 16_000)
        await asyncio.sleep(latency_ms / 1000)
        match kind:
            case "accept" | "slow":
                delivered = self._rng.random() < 0.1
                return Outcome(OutcomeKind.ACCEPTED, provider_message_id=message, delivered=delivered)
            case "hang" | "accept and hang":
                await asyncio.sleep(_ENDLESS_S)
            case "accept and disconnect":
                return Outcome(OutcomeKind.AMBIGUOUS, error_code="reset", error="the connection was lost")
            case "accept, return the id, and disconnect":
                return Outcome(OutcomeKind.AMBIGUOUS, provider_message_id=message, error_code="reset")
            case "raise":
                raise ConnectionError(f"no such mailbox: {delivery.address}")
            case "nonsense":
                return {"status": "fine"}
            case "throttled":
                return Outcome(OutcomeKind.THROTTLED, error_code="429", retry_after_ms=self._retry_after_ms())
        return self._failure_outcome(kind)

    def _failure_outcome(self, kind: str) -> Outcome:
        """Returns the outcome of a send that the provider answers with an error."""
        retry_after_ms = self._retry_after_ms() if self._rng.random() < 0.15 else None
        if kind == "away":
            outcome = self._rng.choice(_AWAY_KINDS)
            return Outcome(outcome, error_code=kind, retry_after_ms=retry_after_ms, uncounted=True)
        if kind == "unlisted":  # a refusal with a code that is not in the error table
            return Outcome(
                OutcomeKind.BAD_CONTENT, error_code=kind, retry_after_ms=retry_after_ms, unlisted=True
            )
        return Outcome(
            OutcomeKind(kind), error_code=kind, error=f"simulated {kind}", retry_after_ms=retry_after_ms
        )

    def _kind(self, delivery: Delivery) -> str:
        if any(f"//host{number}." in delivery.address for number in range(self.plan.hanging_hosts)):
            return "hang"
        outage = self._now_outage()
        if outage is not None:
            return outage.kind
        if self.fault_plan.away and self._rng.random() < self.fault_plan.away:
            return "away"
        if self.fault_plan.unlisted and self._rng.random() < self.fault_plan.unlisted:
            return "unlisted"
        if self._rng.random() < self.fault_plan.trouble:
            return self._rng.choices(tuple(_FAILURE_WEIGHTS), tuple(_FAILURE_WEIGHTS.values()))[0]
        return "accept"

    def _now_outage(self) -> SimulatedOutage | None:
        if self.outage is not None and self._watch.state.ms >= self.outage.until_ms:
            self.outage = None
        return self.outage

    def begin_outage(self, rng: Random) -> None:
        now_ms = self._watch.state.ms
        kind = rng.choice(_OUTAGE_KINDS)
        self.outage = SimulatedOutage(now_ms + rng.randrange(10_000, 120_000), kind)
        self._watch.state.note("sim", f"outage of {self.plan.id}: {kind}")

    def _retry_after_ms(self) -> int:
        return self._rng.choice((200, 1_500, 5_000, 20_000, 60_000, 30 * _HOUR_MS))

    def _take(self, delivery: Delivery) -> str:
        """Stores the message and schedules its receipts, which may arrive before the response."""
        self._messages += 1
        if self.plan.idempotent:
            message = f"{self.plan.id}-{delivery.idempotency_key[-12:]}"
        else:
            message = f"{self.plan.id}-m{self._messages}"
        self._taken[delivery.notification_id, delivery.attempt] = message
        self._watch.took(self.plan.id, message, delivery)
        weights, stories = zip(*_RECEIPT_SEQUENCES, strict=True)
        early = self._rng.random() < 0.3
        for number, event in enumerate(self._rng.choices(stories, weights)[0]):
            receipt = self._receipt(delivery, message, event, f"{message}-{self._messages}-{number}")
            delay_ms = self._rng.randrange(0, 1_000) if early else self._rng.randrange(500, 60_000)
            self._report(delay_ms, receipt)
            if self._rng.random() < 0.2:
                self._report(delay_ms + self._rng.randrange(0, 30_000), receipt)
        return message

    def _receipt(self, delivery: Delivery, message: str, event: ReceiptEvent, event_id: str) -> Receipt:
        kind, wait_ms = self._failure() if event is E.FAILED else (None, 0)
        return Receipt(
            provider=self.plan.id,
            provider_message_id=message,
            event=event,
            event_id=event_id,
            at=self._watch.state.now,
            notification_id=delivery.notification_id if self.plan.sends_notification_id else None,
            attempt=delivery.attempt if self.plan.sends_attempt_number else 0,
            outcome=kind,
            retry_after_ms=wait_ms or None,
            always_failover=event is E.FAILED and self._rng.random() < 0.3,
            error_code=bounce_code(kind, wait_ms) if event is E.FAILED else None,
            routes={delivery.channel: self._route_of(delivery)},
        )

    def _failure(self) -> tuple[OutcomeKind | None, int]:
        """Returns the class of a reported failure, and the wait in its error table entry, in milliseconds."""
        kinds, weights = zip(*_REPORTED_FAILURE_WEIGHTS.items(), strict=True)
        kind = self._rng.choices(kinds, weights)[0]
        return kind, self._rng.choice((0, 0, 2_000, 30_000, 10 * 60_000, 30 * _HOUR_MS))


def _call_key(caller: CallingProcess, delivery: Delivery) -> tuple[str, int]:
    """Returns what tells a call from all others that are not over.

    The number of the attempt does not: if the store has lost a lease, a process may make the attempt twice.
    """
    return caller.name, id(delivery)


def _outcome_of_function(answer: asyncio.Future[object]) -> Outcome | None:
    """Returns the outcome that follows from the result of a plain function."""
    if answer.exception() is not None:
        return Outcome(OutcomeKind.TRANSIENT)
    result = answer.result()
    return result if isinstance(result, Outcome) else Outcome(OutcomeKind.PROVIDER_FAULT)


class SimulatedProviderClient:
    """One process's client for a simulated provider. Some clients support sending in batches."""

    def __init__(self, provider: SimulatedProvider, caller: CallingProcess, *, begins: bool) -> None:
        self._provider = provider
        self._caller = caller
        self._under_way: dict[Any, tuple[Delivery, asyncio.Task[None]]] = {}
        self.begins = begins

    def begin(self, batch: Sequence[tuple[Delivery, Any]], ended: OnOutcomes) -> None:
        """Begins to send at once. The tasks may run later, if the process is paused now."""
        for delivery, mark in batch:
            if not self._caller.dead:
                self._provider.begin(self._caller, delivery)
            task = asyncio.create_task(self._send_and_report(delivery, mark, ended))
            task.add_done_callback(partial(self._give_up_open, delivery))
            self._under_way[mark] = (delivery, task)

    def _give_up_open(self, delivery: Delivery, task: asyncio.Task[None]) -> None:
        """Ends a call whose task was cancelled before it ran."""
        self._provider.give_up(self._caller, delivery)

    def give_up(self, marks: Collection[Any]) -> None:
        for mark in [mark for mark in self._under_way if mark in marks]:  # in the order of their start
            delivery, task = self._under_way.pop(mark)
            task.cancel()
            self._provider.give_up(self._caller, delivery)

    async def _send_and_report(self, delivery: Delivery, mark: Any, ended: OnOutcomes) -> None:
        said: Outcome | BaseException
        try:
            said = await self.send(delivery)
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            said = error
        except BaseException as error:
            said = error
        self._under_way.pop(mark, None)
        ended([(mark, said)])

    async def send(self, delivery: Delivery) -> Outcome:
        if self._caller.dead:
            raise asyncio.CancelledError("the process is dead")
        outcome = await self._provider.serve(self._caller, delivery)
        if self._provider.poisons:
            outcome = poisoned_outcome(outcome, delivery.notification_id)
        return outcome  # type: ignore[return-value]

    async def check(self) -> bool:
        await asyncio.sleep(0.02)
        return self._provider.healthy()

    async def close(self) -> None:
        """Does nothing: there are no connections."""


class SimulatedLookupClient(SimulatedProviderClient):
    """A client for a simulated provider that supports status lookups."""

    async def look_up(self, delivery: Delivery, provider_message_id: str | None) -> Receipt | None:
        await asyncio.sleep(0.05)
        return self._provider.look_up(delivery)


def blocking_client(provider: SimulatedProvider, caller: CallingProcess) -> FunctionProvider:
    """Returns a client that calls a plain function, as a user's own provider would be."""

    def send(delivery: Delivery) -> Any:
        """Begins to send at once. The task may run later, if the process is paused now."""
        provider.begin(caller, delivery)
        work = asyncio.create_task(provider.serve_blocking(caller, delivery))
        work.add_done_callback(lambda task: provider.give_up(caller, delivery))  # it may never have run
        return VirtualBlock(work, lambda: provider.expire(caller, delivery))

    client = FunctionProvider(send)
    client.use_threads(VirtualBlockingCalls(provider.plan.max_in_flight))
    return client
