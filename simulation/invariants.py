"""Checks every commit, send and response of a simulation run against the invariants.

1. Counts add up, also those of met and missed latency goals.
2. No accepted notification, received outcome or event is lost.
3. One idempotency key means one request.
4. A row has one lease at a time, tokens only rise, and a stale token writes nothing.
5. An attempt is counted before it is sent, and it is sent while its lease is valid.
6. There are no more attempts than the policy allows.
7. Nothing is sent after a final status, unless a command or receipt reopened it. A failed push is not retried
   if its device is inactive by then.
8. Nothing is sent before it is due, or in quiet hours.
9. Failover and breakers follow their rules.
10. All attempts send the same message. The idempotency key changes after a reported failure, and only then.
11. Receipts lead to the same status in any order.
12. Every status change is legal and recorded.
13. Concurrency limits and rate limits are kept.
14. When the faults stop, every notification that is not in doubt reaches a final status.
15. No tenant sees another tenant's data, and no log line contains a recipient.
16. A start of priority never waits behind standard or bulk at the same provider longer than one attempt. A
    tenant's first due row starts within its share, and its synchronous sends never hold all slots of a
    provider. A claim takes the earliest rows of a queue. One for a tenant or for chosen notifications takes
    no others.
17. Every event reaches every sink that was registered at its commit, in order per notification.
18. A timer gets committed due times only, and whatever it loses delays no claim beyond the poll interval.
19. Every message of a bridge becomes the notifications of one request and is then acknowledged.
20. A worker that runs is listed as live, and one that stopped or died is not, after a minute at the latest.
21. Nothing is due, expires or is reclaimed because the clock was set. A new time counts after ten minutes.
22. What a store, sink or intake refuses for good harms nothing else, and is kept as a dead letter or parked.
23. An attempt that never started is given back while its process lives, and a late result changes nothing.
24. Nothing is sent after a provider has accepted a message or reported it as taken, unless it failed later.
25. A repeated request gets the first answer, even if it has expired. A cancelled message is no duplicate,
    unless a provider may have taken it.
26. If the store loses commits, what is acknowledged afterwards keeps every invariant. What it still knows of
    ends, and is not sent more often than the policy allows for the attempts that it knows of. A process that
    notices the loss reports once, in one report, what it had acknowledged and is gone, and nothing else.
27. A send ends within `store_timeout_ms`, and a synchronous one within two seconds, however long the store
    and the provider take.
28. If events wait for a sink too long, an alert about it reaches the other sinks.
29. A failure that does not count is retried however few attempts are left. If another provider is then tried
    at once, that attempt counts.
30. A notification whose attempts were all made by another system is due at once, and ends unsent.
31. A process without attempts in flight stops within half a minute, even if a plug-in ignores its
    cancellation.
32. While a worker's results cannot be written, it claims nothing, and it keeps their leases.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from homing.core.lifecycle.claims import Acceptance, ClaimBatch, ClaimRequest, Lease, Submission
from homing.core.lifecycle.commands import AmendResult
from homing.core.lifecycle.events import Event
from homing.core.lifecycle.outcomes import Outcome, Settlement, SettleResult
from homing.core.lifecycle.receipts import Receipt, ReceiptEvent, ReceiptResult
from homing.core.lifecycle.rows import Change, Row
from homing.core.notifications import Channel, Message, Notification, OutcomeKind
from homing.core.ports.providers import Delivery
from homing.core.routing.breaker import Breaker
from homing.engine.intake.recipient_lookup import SYNCHRONOUS_TIMEOUT_MS
from homing.engine.settings import STORE_TIMEOUT_MS
from simulation.checkers.claims import check_chosen, check_order
from simulation.checkers.clock import ClockChecker
from simulation.checkers.counts import CountChecker, RequestChecker
from simulation.checkers.decisions import PolicyChecker
from simulation.checkers.final_state import check_end, check_progress
from simulation.checkers.lateness import check_lateness
from simulation.checkers.loss_reports import LossReportChecker
from simulation.checkers.rate_limits import RateLimitChecker
from simulation.checkers.reported_failures import BounceChecker
from simulation.checkers.rows import RowChecker
from simulation.checkers.sends import SendChecker
from simulation.checkers.shared_state import (
    BreakerChecker,
    DirectoryChecker,
    EventChecker,
    LogChecker,
    check_read,
)
from simulation.checkers.shares import ShareChecker
from simulation.checkers.workers import WorkerChecker
from simulation.database import SimulatedDatabase
from simulation.shadow_state import ProviderCall, ShadowState, SimulationState, short_id

_TAKEN = (ReceiptEvent.QUEUED, ReceiptEvent.SENT, ReceiptEvent.DELIVERED)


_PREPARE_MS = 1_000
"""Time of a send apart from the store."""


class InvariantChecker:
    """Passes everything that happens in a run to the checkers that need it."""

    def __init__(
        self, state: SimulationState, routes: dict[Channel, tuple[str, ...]], database: SimulatedDatabase
    ) -> None:
        self.state = state
        self.directory = DirectoryChecker(state)
        self.breakers = BreakerChecker(state)
        self.policies = PolicyChecker(state, routes, self.breakers.may_avoid, self.directory)
        self.sends = SendChecker(state, self.policies)
        self.pace = RateLimitChecker(state)
        self.shares = ShareChecker(state)
        self.counts = CountChecker(state)
        self.requests = RequestChecker(state)
        self.clock = ClockChecker(state)
        self.rows = RowChecker(
            state,
            self.counts,
            skip_reason=self.directory.skip_reason,
            decided=self._decided,
            accepted=self.policies.accepted,
            bounced=BounceChecker(state, routes).bounced,
            clock=self.clock,
            lease_expired=self.sends.lease_expired,
        )
        self.events = EventChecker(state, self.rows.removed)
        self.loss_reports = LossReportChecker(state)
        self.workers = WorkerChecker(state)
        self.logs = LogChecker(state)
        self.database = database
        self._breakers: dict[str, Breaker] = {}
        """The breakers as they were last stored."""
        self.answered: dict[str, str] = {}
        """Notification id → tenant, for each acceptance that a caller received."""
        self.receipts: dict[tuple[str, str], dict[str, Receipt]] = {}
        """(provider, message id) → event id → receipt, for each receipt that the store processed."""
        self._purged_events: set[tuple[str, str]] = set()
        """(provider, event id) of processed receipts that the store has purged since."""
        self._owners: dict[tuple[str, str], str] = {}
        """(provider, message id) → notification id, for each message that a provider took."""

    # From the store ------------------------------------------------------------------------------

    def created(self, caller: str, change: Change, message: Message | None) -> None:
        """Checks a row that `caller` has stored."""
        if message is None:
            self.state.violate("10", "stored without its message", change.row.id)
        self.rows.created(caller, change, message)

    def changed(self, serving: str, caller: str, change: Change, exact: bool) -> None:
        """Checks a change of a row that `caller` has committed."""
        self.rows.changed(serving, caller, change, exact)

    def done(self, tenants: Iterable[str]) -> None:
        """Checks the counts of these tenants after a transaction."""
        self.counts.done(tenants, self.database.cells)

    def claimed(self, caller: str, batch: ClaimBatch, request: ClaimRequest | None = None) -> None:
        """Checks the result of a `claim` call, or of a `reclaim` call, which has no request."""
        self.rows.claimed(caller, batch)
        if request is not None:
            check_lateness(self.state, batch)
            self.breakers.claimed(caller, batch)
            check_chosen(self.state, batch, request)
            if request.ids is None:  # otherwise, rows that were due earlier may be left out
                left = self.database.due_queues(self.state.now)
                if request.tenant is not None:
                    left = [queue for queue in left if queue[1] == request.tenant]
                check_order(self.state, batch, request, left)
                self.shares.claimed(caller, batch, left)
        self.done({claim.tenant for claim in batch.claims})

    def accepted(self, batch: Sequence[Submission], answers: Sequence[Acceptance]) -> None:
        """Checks the result of an `accept` call."""
        self.requests.accepted(batch, answers, self.rows.born)
        self.rows.born.clear()
        self.done({submission.tenant for submission in batch})

    def extended(self, caller: str, leases: Sequence[Lease], held: frozenset[str]) -> None:
        """Checks the result of an `extend` call."""
        for lease in leases:
            shadow, row = self.state.shadows.get(lease.id), self.database.find_row(lease.id)
            if shadow is None or row is None or shadow.rolled_back:
                continue
            if row.provider != shadow.provider:
                self._check_move(caller, shadow, row)
        self.rows.extended(caller, leases, held, self.database.find_row)

    def settling(self, caller: str, settlement: Settlement) -> bool:
        self.sends.settled(settlement)
        return self.rows.settling(caller, settlement)

    def settled(self, settlement: Settlement, expected: bool, applied: bool) -> None:
        self.rows.settled(settlement, expected, applied)

    def settled_batch(self, batch: Sequence[Settlement], result: SettleResult) -> None:
        self.rows.settled_batch(batch, result)
        found = (self.state.shadows.get(settlement.id) for settlement in batch)
        self.done({shadow.tenant for shadow in found if shadow is not None})

    def amended(self, tenant: str, result: AmendResult) -> None:
        for id in (*result.applied, *result.requested):
            if self.state.shadows[id].tenant != tenant:
                self.state.violate("15", f"{tenant} changed another tenant's notification", id)
        self.done({tenant})

    def received(self, caller: str, batch: Sequence[Receipt], result: ReceiptResult) -> None:
        for receipt in batch:
            message = (receipt.provider, receipt.provider_message_id)
            known = self.receipts.setdefault(message, {})
            event = (receipt.provider, receipt.event_id)
            if event in self._purged_events:
                self._purged_events.discard(event)  # the store took it for a new one
            elif receipt.event_id in known and receipt.event_id not in result.unchanged:
                self.state.violate("11", "a repeated receipt changed something")
            if receipt.event_id not in known:
                self._note_taken(message, receipt, kept=receipt.event_id in result.orphaned)
            known[receipt.event_id] = receipt
            self.state.note(caller, f"receipt {receipt.event.value} {message[1][-12:]}")
        self.done(self.state.plan.tenants)

    def purged_receipts(self) -> None:
        """Notes which receipts the store does not know any more, after it has purged some."""
        stored = self.database.receipt_events()
        processed = {(message[0], event_id) for message, known in self.receipts.items() for event_id in known}
        self._purged_events |= processed - stored

    def took(self, provider: str, message: str, delivery: Delivery) -> None:
        """Records which notification a message of a provider belongs to."""
        self._owners[provider, message] = delivery.notification_id
        shadow = self.state.shadows.get(delivery.notification_id)
        if shadow is not None:
            shadow.messages[delivery.attempt] = message

    def _note_taken(self, message: tuple[str, str], receipt: Receipt, *, kept: bool) -> None:
        """Records that a message was reported as taken or failed. Receipts kept for later do not count."""
        shadow = self.state.shadows.get(self._owners.get(message, ""))
        if shadow is None:
            return
        shadow.touched += 1
        if receipt.event in (ReceiptEvent.FAILED, ReceiptEvent.SPAM_REPORT):
            shadow.failed_messages.add(message[1])
            shadow.taken.discard(message[1])
        elif receipt.event in _TAKEN and not kept and message[1] not in shadow.failed_messages:
            shadow.taken.add(message[1])

    def removed(self, row: Row) -> None:
        self.rows.purged(row)
        self.state.note("store", f"purge {short_id(row.id)}")

    def read(self, tenant: str, found: Iterable[Notification]) -> None:
        check_read(self.state, tenant, found)

    def breaker_put(self, caller: str, provider: str, breaker: Breaker, put: bool) -> None:
        if put:
            self.breakers.put(caller, provider, self._breakers.get(provider) or Breaker(), breaker)
            self._breakers[provider] = breaker

    # From the processes --------------------------------------------------------------------------

    def send_begins(self, process: str, provider: str, delivery: Delivery) -> ProviderCall:
        def passes(shadow: ShadowState) -> None:
            self.breakers.passes(process, provider, shadow)

        call = self.sends.begins(process, provider, delivery, passes)
        shadow = self.state.shadows.get(call.id)
        if shadow is not None and not shadow.rolled_back:
            self.pace.sent(shadow)
        self.shares.begins(call)
        return call

    def send_ends(self, call: ProviderCall, outcome: Outcome | None, *, received: bool) -> None:
        self.sends.ends(call, outcome, received=received)
        self.shares.ends(call)
        if received:
            self.breakers.ended(call)

    def tries_to_settle(self, batch: Sequence[Settlement]) -> None:
        """Records that a process tries to settle these claims.

        An attempt may be settled at its deadline before the loop has run its cancelled task again.
        """
        self.sends.tried(batch)
        for settlement in batch:
            shadow, record = self.state.shadows.get(settlement.id), settlement.attempt
            if shadow is None or record is None or record.outcome is not OutcomeKind.AMBIGUOUS:
                continue
            if shadow.rolled_back:
                continue  # two calls may have the same number
            call = shadow.calls.get(record.number)
            if call is not None and not call.over and self.state.ms >= call.due_ms:
                self.send_expires(call)

    def send_expires(self, call: ProviderCall) -> None:
        """Records that an attempt ended at its deadline, while its call goes on."""
        self.sends.expires(call)
        self.breakers.ended(call)

    def send_returns(self, call: ProviderCall) -> None:
        """Records the end of a call whose attempt had ended before."""
        self.sends.returns(call)
        self.shares.ends(call)

    def published(self, process: str, sink: str, events: Sequence[Event]) -> None:
        self.events.published(process, sink, events)

    def answers(self, tenant: str, ids: Iterable[str]) -> None:
        """Records that a caller received these ids as accepted, and checks that they exist (invariant 2)."""
        for id in ids:
            if self.is_known(id):
                self.answered[id] = tenant
            elif id not in self.state.lost:  # the commit is lost, but its answer was in flight
                self.state.violate("2", "reported as accepted, but not stored", id)

    def answered_after(self, took_ms: int, *, synchronous: bool) -> None:
        """Checks that a send has not waited too long for the store or the provider (invariant 27)."""
        if synchronous and took_ms > SYNCHRONOUS_TIMEOUT_MS:
            self.state.violate("27", f"a synchronous send took {took_ms} ms")
        if took_ms > STORE_TIMEOUT_MS + _PREPARE_MS:
            self.state.violate("27", f"a send took {took_ms} ms")

    def refused(self, tenant: str, key: str) -> None:
        """Checks that a request which was rejected as invalid was not accepted before (invariant 25)."""
        if self.database.has_request(tenant, key):
            self.state.violate("25", f"a repeat of the request with the key {key} was rejected")

    def is_known(self, id: str) -> bool:
        """Returns True if a notification is stored, or was purged since."""
        return id in self.state.shadows or id in self.rows.removed

    # From the run --------------------------------------------------------------------------------

    def tick(self, working_ms: Mapping[str, int]) -> None:
        """Runs the periodic checks. `working_ms` says which workers run now, and since when."""
        self.workers.check(self.database.workers(), working_ms)
        self.sends.sweep()
        for tenant in self.state.plan.tenants:
            self.counts.check_tallies(tenant, self.database.tallies(tenant))
            self.counts.check_sums(tenant, *self.database.sums(tenant, self.state.now))
        self.counts.check_goals(self.database.goals())
        check_progress(self.state, self.database)
        self.clock.check_progress()

    def rest(self, working_ms: Mapping[str, int]) -> None:
        """Checks, before the processes stop, that every received outcome was settled (invariant 2).

        Also checks that the workers have reported what is lost. `working_ms` says since when each runs.
        """
        self.sends.sweep(wait_ms=0)
        paused_ms = self.state.paused_ms
        since_ms = {name: max(at, paused_ms.get(name, 0)) for name, at in working_ms.items()}
        self.loss_reports.check_complete(since_ms, {**self.state.shadows, **self.rows.removed})

    def finish(self) -> None:
        """Runs the final checks, after the processes have stopped."""
        self.policies.finish()
        self.sends.finish()
        self.pace.finish()
        self.events.finish()
        check_end(self.state, self.database, self.answered, self.rows.removed, self.receipts)

    def _decided(self, process: str, shadow: ShadowState, settlement: Settlement, row: Row) -> None:
        if not shadow.rolled_back:
            self.policies.decided(process, shadow, settlement, row)

    def _check_move(self, process: str, shadow: ShadowState, row: Row) -> None:
        """Checks a move to another provider: a breaker or a hold must be its cause (invariant 9)."""
        held = row.holds.get(shadow.provider, 0) > self.state.now
        if row.provider in shadow.spent:
            text = f"moved to {row.provider}, which is spent in this round"
            self.state.violate("9", text, shadow.id)
        if shadow.pinned:
            self.state.violate(
                "9", f"moved to {row.provider}, although {shadow.provider} was forced", shadow.id
            )
        if (
            not held
            and not self.breakers.may_avoid(process, shadow.provider, shadow)
            and not self.state.jumps
        ):
            self.state.violate(
                "9", f"moved from {shadow.provider} to {row.provider} without a cause", shadow.id
            )
