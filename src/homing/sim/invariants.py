"""The watch over a world: every commit, every send, every answer is held against the invariants.

1 counts add up · 2 nothing accepted, answered or failed is lost · 3 one key, one request · 4 one lease,
rising tokens, stale writes nothing · 5 counted before sent, sent inside its lease · 6 no more attempts
than allowed · 7 nothing sent after the end · 8 not before its time · 9 failover and breakers by the rules
· 10 the same message every time · 11 receipts in any order · 12 every change legal and recorded ·
13 caps, limits and rates · 14 everything ends · 15 nobody else's data, no recipient in a log
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from homing.core.breaker import Breaker
from homing.core.model import (
    Acceptance,
    AmendResult,
    Channel,
    Entry,
    Event,
    Lease,
    Notification,
    Outcome,
    Receipt,
    ReceiptResult,
    Settlement,
    SettleResult,
    Submission,
)
from homing.core.ports import Delivery
from homing.core.rows import Change, Row
from homing.sim.scene import Call, Scene, Shadow, short_id
from homing.sim.watch_bounces import BounceWatch
from homing.sim.watch_counts import CountWatch, RequestWatch
from homing.sim.watch_final import check_end, check_progress
from homing.sim.watch_pace import PaceWatch
from homing.sim.watch_policy import PolicyWatch
from homing.sim.watch_rows import RowWatch
from homing.sim.watch_sends import SendWatch
from homing.sim.watch_shared import (
    BreakerWatch,
    DirectoryWatch,
    EventWatch,
    LogWatch,
    check_read,
)
from homing.sim.watched import WatchedStore
from homing.stores.memory_schedule import Kept


class Watch:
    """Hands what it hears to those who know what may be."""

    def __init__(self, scene: Scene, routes: dict[Channel, tuple[str, ...]]) -> None:
        self.scene = scene
        self.directory = DirectoryWatch()
        self.breakers = BreakerWatch(scene)
        self.policies = PolicyWatch(scene, routes, self.breakers.may_avoid)
        self.sends = SendWatch(scene, self.policies)
        self.pace = PaceWatch(scene)
        self.counts = CountWatch(scene)
        self.requests = RequestWatch(scene)
        self.rows = RowWatch(
            scene,
            self.counts,
            skip_reason=self.directory.skip_reason,
            decided=self._decided,
            accepted=self.policies.accepted,
            bounced=BounceWatch(scene, routes).bounced,
        )
        self.events = EventWatch(scene, self.rows.removed)
        self.logs = LogWatch(scene)
        self.store: WatchedStore
        self.answered: dict[str, str] = {}
        """Id → tenant, of everything whose acceptance was answered."""
        self.receipts: dict[tuple[str, str], dict[str, Receipt]] = {}
        """(provider, message) → event id → receipt, as the store has heard them."""

    # From the store ------------------------------------------------------------------------------

    def changed(self, serving: str, caller: str, kept: Kept, change: Change) -> None:
        """A row changed, in the transaction that is being served to `caller`."""
        self.rows.changed(serving, caller, kept, change)

    def done(self, tenants: Iterable[str]) -> None:
        """A transaction that concerned these tenants is over."""
        self.counts.done(tenants, self.store.cells)

    def accepted(self, batch: Sequence[Submission], answers: Sequence[Acceptance]) -> None:
        self.requests.accepted(batch, answers, self.rows.born)
        self.rows.born.clear()
        self.done({submission.tenant for submission in batch})

    def extended(self, caller: str, leases: Sequence[Lease], held: frozenset[str]) -> None:
        for lease in leases:
            shadow, kept = self.scene.shadows.get(lease.id), self.store.row_of(lease.id)
            if shadow is not None and kept is not None and kept.row.provider != shadow.provider:
                self._check_move(caller, shadow, kept.row)
        self.rows.extended(caller, leases, held, self.store.row_of)

    def settling(self, caller: str, settlement: Settlement) -> bool:
        self.sends.settled(settlement)
        return self.rows.settling(caller, settlement)

    def settled(self, settlement: Settlement, expected: bool, applied: bool) -> None:
        self.rows.settled(settlement, expected, applied)

    def settled_batch(self, batch: Sequence[Settlement], result: SettleResult) -> None:
        self.rows.settled_batch(batch, result)
        found = (self.scene.shadows.get(settlement.id) for settlement in batch)
        self.done({shadow.tenant for shadow in found if shadow is not None})

    def amended(self, tenant: str, result: AmendResult) -> None:
        for id in (*result.applied, *result.requested):
            if self.scene.shadows[id].tenant != tenant:
                self.scene.violate("15", f"{tenant} has changed another tenant's notification", id)
        self.done({tenant})

    def received(self, caller: str, batch: Sequence[Receipt], result: ReceiptResult) -> None:
        for receipt in batch:
            message = (receipt.provider, receipt.provider_message_id)
            heard = self.receipts.setdefault(message, {})
            if receipt.event_id in heard and receipt.event_id not in result.unchanged:
                self.scene.violate("11", "a receipt that was heard before changed something")
            heard[receipt.event_id] = receipt
            self.scene.note(caller, f"receipt {receipt.event.value} {message[1][-12:]}")
        self.done(self.scene.plan.tenants)

    def removed(self, kept: Kept) -> None:
        self.rows.purged(kept)
        self.scene.note("store", f"purge {short_id(kept.row.id)}")

    def read(self, tenant: str, found: Iterable[Notification]) -> None:
        check_read(self.scene, tenant, found)

    def breaker_put(self, caller: str, provider: str, before: Breaker, after: Breaker, put: bool) -> None:
        if put:
            self.breakers.put(caller, provider, before, after)

    # From the processes --------------------------------------------------------------------------

    def policies_read(self, process: str, entries: Sequence[Entry]) -> None:
        self.policies.read(process, entries)

    def send_begins(self, process: str, carrier: str, delivery: Delivery) -> Call:
        def passes(shadow: Shadow) -> None:
            self.breakers.passes(process, carrier, shadow)

        call = self.sends.begins(process, carrier, delivery, passes)
        self.pace.sent(self.scene.shadows[call.id])
        return call

    def send_ends(self, call: Call, outcome: Outcome | None, *, heard: bool) -> None:
        self.sends.ends(call, outcome, heard=heard)
        if heard:
            self.breakers.ended(call)

    def published(self, process: str, events: Sequence[Event]) -> None:
        self.events.published(process, events)

    def answers(self, tenant: str, ids: Iterable[str]) -> None:
        """A caller was told that these are accepted (2)."""
        for id in ids:
            if id not in self.scene.shadows and id not in self.rows.removed:
                self.scene.violate("2", "answered as accepted, but it is not there", id)
            self.answered[id] = tenant

    # From the world ------------------------------------------------------------------------------

    def tick(self) -> None:
        """Now and then: what must have happened by now."""
        self.sends.sweep()
        for tenant in self.scene.plan.tenants:
            self.counts.told(tenant, self.store.told(tenant))
        check_progress(self.scene, self.store)

    def rest(self) -> None:
        """Everything has come to its end, and the processes still run."""
        self.sends.sweep(wait_ms=0)

    def finish(self) -> None:
        """The world is over."""
        self.policies.finish()
        self.sends.finish()
        self.pace.finish()
        self.events.finish()
        check_end(self.scene, self.store, self.answered, self.rows.removed, self.receipts)

    def _decided(self, process: str, shadow: Shadow, settlement: Settlement, row: Row) -> None:
        self.policies.decided(process, shadow, settlement, row)

    def _check_move(self, process: str, shadow: Shadow, row: Row) -> None:
        """A claim is rerouted: its provider's breaker must be to blame, or its wish to be left alone (9)."""
        held = row.holds.get(shadow.provider, 0) > self.scene.now
        if shadow.pinned:
            self.scene.violate(
                "9", f"moved to {row.provider}, though {shadow.provider} was forced", shadow.id
            )
        if (
            not held
            and not self.breakers.may_avoid(process, shadow.provider, shadow)
            and not self.scene.jumps
        ):
            self.scene.violate(
                "9", f"moved from {shadow.provider} to {row.provider} without a cause", shadow.id
            )
