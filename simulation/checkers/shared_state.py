"""Checks breakers, reference data, events, reads and logs (invariants 2, 4, 9, 12, 15 and 17)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from homing.core.lifecycle.claims import ClaimBatch
from homing.core.lifecycle.events import NOTIFICATION_FAILED, STATUS_CHANGED, Event
from homing.core.notifications import Channel, Notification, OutcomeKind
from homing.core.ports.stores import SinkRegistration
from homing.core.routing.breaker import Breaker, Phase
from homing.core.routing.failover import pinned_outlet
from simulation.database import OutboxRow
from simulation.shadow_state import ProviderCall, ShadowState, SimulationState

_PROVIDER_FAILURES = (OutcomeKind.TRANSIENT, OutcomeKind.PROVIDER_FAULT, OutcomeKind.AMBIGUOUS)

_IGNORED_BY_BREAKER = (OutcomeKind.THROTTLED, OutcomeKind.LOST)

_LEGAL_TRANSITIONS = {
    Phase.CLOSED: (Phase.CLOSED, Phase.OPEN),
    Phase.OPEN: (Phase.OPEN, Phase.HALF_OPEN),
    Phase.HALF_OPEN: (Phase.HALF_OPEN, Phase.CLOSED, Phase.OPEN),
}


SECRET_MARKER = "hush-hush"  # noqa: S105 - not a password: it must not appear in logs
"""Part of every address and content in a simulation run. No log line may contain it."""


_KNOWN_FOR_MS = 1_000
"""Time after which a process has certainly begun to obey the breaker that it has read."""

OPERATOR_PROCESS = "desk"
"""Name of the operator's process. Its breaker changes are manual."""


class BreakerChecker:
    """Records what each process knows about each breaker, and checks that the process obeys it."""

    def __init__(self, state: SimulationState) -> None:
        self._state = state
        self._limits = {provider.id: provider.breaker.failures for provider in state.plan.providers}
        self._per_host = {c.id for c in state.plan.providers if c.host_slots is not None}
        """Providers whose outlets have breakers of their own. A failed send never opens the provider's."""
        self._seen: dict[tuple[str, str], list[tuple[int, Breaker]]] = {}
        """(process, provider) → list of (time when the process read it, breaker)."""
        self._outdated: set[tuple[str, str]] = set()
        """(process, provider) pairs whose write was rejected. The next breaker that the process reads
        counts, whatever its version."""
        self._faults: dict[tuple[str, str], int] = {}
        self._tripped_ms: dict[tuple[str, str], int] = {}
        self._reset_ms: dict[tuple[str, str], int] = {}
        """(process, provider) → time at which a breaker that the process had opened was closed again. A
        decision from before that time may be written later."""
        self._unsure: set[tuple[str, str]] = set()
        """(process, provider) pairs with a send during which the process was paused. Whether its result
        counts depends on the length of the pause: after the timeout, the process does not look at it."""
        self._worked_ms: dict[tuple[str, str], int] = {}
        self._trials: dict[tuple[str, int], str] = {}
        """(provider, breaker version) → id of the notification that was the trial."""
        self._read_after: dict[str, int] = {}
        """Process → number of losses of commits before its last read. Before the next read, it may know
        breakers that the store has lost."""
        self.changes = 0
        self.checks_after_loss = 0
        """Number of sends and changes that were checked although the store had lost commits before."""

    def read(self, process: str, breakers: Mapping[str, Breaker], after_losses: int) -> None:
        """Records what the process has read from the store, after this number of losses of commits."""
        self._read_after[process] = after_losses
        lost = {provider: Breaker() for who, provider in self._seen if who == process}
        for provider, breaker in {**lost, **breakers}.items():
            self._learn(process, provider, breaker)

    def rolled_back(self) -> None:
        """Records that the store has lost commits, and versions are used again."""
        self._trials.clear()

    def put(self, process: str, provider: str, before: Breaker, after: Breaker) -> None:
        """Checks a change of a breaker."""
        state = self._state
        state.note(process, f"breaker {provider} {_describe_breaker(before)} → {_describe_breaker(after)}")
        self.changes += before.phase is not after.phase
        if self._is_outdated(process):
            return
        by_hand = process == OPERATOR_PROCESS
        opened = before.phase is Phase.CLOSED and after.phase is Phase.OPEN and not after.why
        if opened and not by_hand and provider in self._per_host:
            state.violate("9", f"the endpoint of a recipient opened the breaker of {provider} for everybody")
        key = (process, provider)
        known = key in self._tripped_ms or key in self._reset_ms or key in self._unsure
        if opened and not by_hand and not known and state.plan.checks_shares:  # without other faults
            state.violate("9", f"{process} opened the breaker of {provider} without enough failures")
        # A worker writes its breaker state when it can. It may have opened and waited before that.
        alone = after.phase is Phase.HALF_OPEN and key in self._tripped_ms
        if not by_hand and not alone and after.phase not in _LEGAL_TRANSITIONS[before.phase]:
            state.violate("9", f"the breaker of {provider} went from {before.phase} to {after.phase}")
        if after.phase is Phase.HALF_OPEN and not by_hand and self._clocks_are_exact():
            until = before.open_until if before.phase is Phase.OPEN else before.trial_until
            if until > state.now + 50:
                state.violate("9", f"a trial at {provider} starts {until - state.now} ms too early")
        closed = before.phase is Phase.HALF_OPEN and after.phase is Phase.CLOSED
        if closed and not by_hand and before.trial_by != process:
            state.violate("9", f"{process} closed the breaker of {provider} during {before.trial_by}'s trial")

    def known(self, process: str, provider: str, breaker: Breaker) -> None:
        """Records that the process's own write succeeded.

        Its own trial has ended earlier, and failures since then count.
        """
        self._learn(process, provider, breaker, own=breaker.forced is None)

    def refused(self, process: str, provider: str) -> None:
        """Records that the process's write was rejected because another process had written first."""
        self._outdated.add((process, provider))

    def ended(self, call: ProviderCall) -> None:
        """Records the result of a call, which may be a timeout."""
        key = (call.process, call.provider)
        kind = call.kind
        _, newest = next(self._views(key, 0))
        if call.was_cut_short or (call.provider in self._per_host and newest.phase is Phase.CLOSED):
            return
        paused = call.began_ms < self._state.paused_ms.get(call.process, 0)
        if paused and kind not in _IGNORED_BY_BREAKER:
            self._unsure.add(key)
        if kind in _PROVIDER_FAILURES:
            if paused or self._has_just_read(key):
                return
            self._faults[key] = self._faults.get(key, 0) + 1
            if self._faults[key] == self._limits[call.provider]:
                self._tripped_ms.setdefault(key, self._state.ms)
        elif kind not in _IGNORED_BY_BREAKER:
            # An open breaker stays open whatever the result of an older send: only a trial closes it.
            _, newest = next(self._views(key, 0))
            if newest.phase is Phase.HALF_OPEN and newest.trial_by == call.process:
                self._forget_trip(key)
            self._faults.pop(key, None)
            self._worked_ms[key] = self._state.ms

    def passes(self, process: str, provider: str, shadow: ShadowState) -> None:
        """Checks a send: at least one of the breaker states that the process knew must allow it."""
        state, key = self._state, (process, provider)
        if shadow.leased_ms <= state.rolled_back_ms or self._is_outdated(process):
            return
        tripped = self._tripped_ms.get(key)
        views = list(self._views(key, shadow.leased_ms))
        newest = views[0][1]
        if tripped is not None and shadow.leased_ms > tripped and _is_closed(newest):
            number = self._faults[key]
            state.violate("9", f"sent to {provider} after {number} consecutive failures", shadow.id)
        if any(self._allows_send(since_ms, view, key) for since_ms, view in views):
            return
        trial = next((v for _, v in views if v.phase is Phase.HALF_OPEN and v.trial_by == process), None)
        if trial is None:
            state.violate("9", f"sent to {provider}, whose breaker is {_describe_breaker(newest)}", shadow.id)
        first = self._trials.setdefault((provider, trial.version), shadow.id)
        if first != shadow.id:
            state.violate("9", f"a second trial at {provider}, after {first}", shadow.id)

    def claimed(self, process: str, batch: ClaimBatch) -> None:
        """Checks that what waits for a provider that an operator has stopped is left alone meanwhile.

        The process must know for a second that the provider is stopped.
        """
        faults = self._state.plan.fault_plan
        late = faults.slow_per_call or faults.slow_claim_per_call or faults.pause_every_ms
        if late or self._is_outdated(process):
            return
        for claim in batch.claims:
            if claim.outlet != pinned_outlet(claim.provider):
                continue
            views = self._views((process, claim.provider), self._state.ms - _KNOWN_FOR_MS)
            if all(view.forced is Phase.OPEN for _, view in views):
                text = f"{process} claimed it, although {claim.provider}, for which it waits, is stopped"
                self._state.violate("9", text, claim.id)

    def may_avoid(self, process: str, provider: str, shadow: ShadowState) -> bool:
        """Returns True if an attempt may avoid this provider, because its breaker may have been open.

        An operator's choice wins over the automatic phase.
        """
        key = (process, provider)
        views = [view for _, view in self._views(key, shadow.leased_ms)]
        shut = any((view.forced or view.phase) is not Phase.CLOSED for view in views)
        reset = self._reset_ms.get(key, -1) >= shadow.leased_ms
        return shut or reset or key in self._tripped_ms or key in self._unsure

    def _allows_send(self, since_ms: int, view: Breaker, key: tuple[str, str]) -> bool:
        if view.forced is not None:
            return view.forced is not Phase.OPEN
        if view.phase is Phase.CLOSED:
            return True
        # The process's own trial succeeded, which the other processes learn from its next write.
        mine = view.phase is Phase.HALF_OPEN and view.trial_by == key[0]
        return mine and self._worked_ms.get(key, -1) >= since_ms

    def _views(self, key: tuple[str, str], since_ms: int) -> Iterator[tuple[int, Breaker]]:
        """Yields (time of the read, breaker), newest first, back to the breaker in force at `since_ms`."""
        for from_ms, breaker in reversed(self._seen.get(key, [])):
            yield from_ms, breaker
            if from_ms < since_ms:
                return
        yield 0, Breaker()

    def _learn(self, process: str, provider: str, breaker: Breaker, *, own: bool = False) -> None:
        key = (process, provider)
        seen = self._seen.setdefault(key, [])
        newer = not seen or breaker.version > seen[-1][1].version  # reads may arrive out of order
        if self._state.rollbacks and seen:
            newer = breaker != seen[-1][1]  # versions are used again
        if newer or key in self._outdated:
            self._outdated.discard(key)
            seen.append((self._state.ms, breaker))
            if not own and (breaker.phase is Phase.CLOSED or breaker.forced is not None):
                self._faults.pop(key, None)
                self._forget_trip(key)

    def _forget_trip(self, key: tuple[str, str]) -> None:
        if self._tripped_ms.pop(key, None) is not None:
            self._reset_ms[key] = self._state.ms

    def _is_outdated(self, process: str) -> bool:
        """Returns True if the process may know breakers that the store has lost."""
        losses = self._state.rollbacks
        if self._read_after.get(process, 0) < losses:
            return True
        self.checks_after_loss += losses > 0
        return False

    def _has_just_read(self, key: tuple[str, str]) -> bool:
        """Returns True if the store's answer has only just reached the process, which may not use it yet.

        By the breaker that it knew before, which was forced or not closed, a failure would not count.
        """
        seen = self._seen.get(key, ())
        if len(seen) < 2 or seen[-1][0] != self._state.ms:
            return False
        before = seen[-2][1]
        return before.forced is not None or before.phase is not Phase.CLOSED

    def _clocks_are_exact(self) -> bool:
        """Returns True if the processes know the store's time to the millisecond."""
        fault_plan = self._state.plan.fault_plan
        exact = not (fault_plan.slow_per_call or fault_plan.pause_every_ms or fault_plan.jump_every_ms)
        return exact and not self._state.jumps


class DirectoryChecker:
    """Records committed reference data, such as suppressions, preferences and devices."""

    def __init__(self, state: SimulationState) -> None:
        self._state = state
        self._filed: dict[tuple[str, str, str], Mapping[str, Any]] = {}
        self._changed_ms: dict[str, int] = {}
        """Tenant → loop time of the last change of its reference data."""

    def filed(self, tenant: str, kind: str, key: str, value: Mapping[str, Any] | None) -> None:
        self._changed_ms[tenant] = self._state.ms
        if value is None:
            self._filed.pop((tenant, kind, key), None)
        else:
            self._filed[tenant, kind, key] = value

    def merged(self, tenant: str, kind: str, key: str, fields: Mapping[str, Any]) -> None:
        self._changed_ms[tenant] = self._state.ms
        self._filed[tenant, kind, key] = {**self._filed.get((tenant, kind, key), {}), **fields}

    def unchanged_since(self, tenant: str, ms: int) -> bool:
        """Returns True if no reference data of this tenant has changed since the loop time `ms`."""
        return self._changed_ms.get(tenant, -1) < ms and self._state.rolled_back_ms < ms

    def skip_reason(self, shadow: ShadowState) -> str:
        """Returns why this notification must not be sent from now on. Empty if there is no reason."""
        where = f"{shadow.channel.value}:{shadow.address}"
        for category in ("*", shadow.category):
            if (shadow.tenant, "suppression", f"{where}:{category}") in self._filed:
                return "its address was suppressed"
        if shadow.recipient_id is not None:
            key = f"{shadow.recipient_id}:{shadow.category}:{shadow.channel.value}"
            if self._filed.get((shadow.tenant, "preference", key), {}).get("allowed") is False:
                return "its recipient had unsubscribed"
        if shadow.channel is Channel.PUSH:
            device = self._filed.get((shadow.tenant, "device", shadow.address), {})
            if device.get("active") is False:
                return "its device was inactive"
        return ""


MAIN_SINK = "sink"
"""Name of the sink that every simulated process has and that is never removed."""

DEAD_SINK = "dead"
"""Name of a sink that no simulated process has. It is registered in some runs."""


class EventChecker:
    """Checks that each dead letter has exactly one event, which may be published repeatedly.

    The same holds for each status change, if the plan includes `StatusChanged` events. Every event reaches
    every sink that was registered when it was committed, in order per notification, unless the sink was
    removed since (invariant 17).
    """

    def __init__(self, state: SimulationState, gone: Mapping[str, ShadowState]) -> None:
        self._state = state
        self._gone = gone
        self._sinks: dict[str, frozenset[str]] = {}
        """Events that each registered sink gets, by the sink's name."""
        self._expected: dict[tuple[str, str], list[str]] = {}
        """(sink, id of a notification or alert) → ids of its events that the sink has not got yet."""
        self._published: dict[str, set[str]] = {}
        """Sink → ids of the events that it has got, or that were removed with it."""
        self.reported_lost: set[str] = set()
        """Ids of the notifications that alerts have reported as lost."""
        self.reported_lag: set[str] = set()
        """Sinks about which an alert has reported that events wait for them too long."""

    def registered(self, process: str, sink: SinkRegistration) -> None:
        self._state.note(process, f"register sink {sink.name}")
        self._sinks[sink.name] = sink.events

    def sink_removed(self, process: str, name: str) -> None:
        self._state.note(process, f"remove sink {name}")
        self._sinks.pop(name, None)
        for place in [place for place in self._expected if place[0] == name]:
            self._published.setdefault(name, set()).update(self._expected.pop(place))

    def committed(self, written: Sequence[OutboxRow]) -> None:
        """Records the events of a transaction. What was written for one sink is expected at all of them."""
        events = {row.id: row for row in written}
        for sink, names in self._sinks.items():
            for event in events.values():
                expected = self._expected.setdefault((sink, event.notification_id or event.id), [])
                known = event.id in expected or event.id in self._published.get(sink, ())
                if event.name in names and not known:  # an alert may be emitted again after a lost response
                    expected.append(event.id)

    def published(self, process: str, sink: str, events: Sequence[Event]) -> None:
        seen = self._published.setdefault(sink, set())
        for event in events:
            if sink == MAIN_SINK and event.notification_id is not None:
                self._tell(event, event.notification_id)
            if event.id in seen:
                continue
            seen.add(event.id)
            if sink == MAIN_SINK and event.payload.get("alert") == "NotificationsLost":
                self._check_loss(event.payload["notificationIds"])
            if sink == MAIN_SINK and event.payload.get("alert") == "SinkLag":
                self.reported_lag.add(event.payload["sink"])
            self._state.note(process, f"publish {event.name} {event.id[-24:]} to {sink}")
            place = (sink, event.notification_id or event.id)
            if self._is_rolled_back(event.notification_id):
                self._expected.pop(place, None)
            elif expected := self._expected.get(place):
                if expected[0] != event.id:
                    text = f"{sink} got the event {event.id} before {expected[0]}"
                    self._state.violate("17", text, event.notification_id or "")
                del expected[0]

    def rolled_back(self) -> None:
        """Records that the store has lost commits. Published events need not be published again."""
        for (sink, about), ids in self._expected.items():
            got = self._published.get(sink, ())
            self._expected[sink, about] = [id for id in ids if id not in got]

    def parked(self, process: str, sink: str, ids: Sequence[str]) -> None:
        """Records events that were set aside. Only events that the sink refuses may be (invariant 22)."""
        for place, expected in self._expected.items():
            for id in [id for id in expected if place[0] == sink and id in ids]:
                self._state.note(process, f"park {id[-24:]} of {sink}")
                if not (self._state.plan.poison and place[1][-1] == "7"):
                    self._state.violate("22", f"{sink} takes the event {id}, but it was parked", place[1])
                expected.remove(id)
                self._published.setdefault(sink, set()).add(id)

    def finish(self) -> None:
        for (sink, about), ids in self._expected.items():
            if ids and sink != DEAD_SINK and not self._is_rolled_back(about):
                self._state.violate("17", f"{sink} never got the event {ids[0]}", about)
        told_all = STATUS_CHANGED in self._state.plan.events
        for shadow in [*self._state.shadows.values(), *self._gone.values()]:
            if shadow.rolled_back:
                continue
            if len(shadow.events) != shadow.failed:
                text = f"{shadow.failed} times a dead letter, but {len(shadow.events)} events were published"
                self._state.violate("2", text, shadow.id)
            if told_all and len(shadow.tellings) != shadow.turns:
                text = f"{shadow.turns} status changes, but {len(shadow.tellings)} events were published"
                self._state.violate("2", text, shadow.id)

    def _check_loss(self, ids: Sequence[str]) -> None:
        """Checks that what is reported as lost has been lost (invariant 26)."""
        for id in ids:
            if id not in self._state.lost:
                self._state.violate("26", "reported as lost, but it is not", id)
        self.reported_lost.update(ids)

    def _is_rolled_back(self, id: str | None) -> bool:
        """Returns True if the store has lost something about the notification, and thus some of its events.

        A relay may still publish a lost event that it had read before.
        """
        shadow = None if id is None else self._state.shadows.get(id) or self._gone.get(id)
        return id in self._state.lost or (shadow is not None and shadow.rolled_back)

    def _tell(self, event: Event, id: str) -> None:
        if self._is_rolled_back(id):
            return
        shadow = self._state.shadows.get(id) or self._gone.get(id)
        if shadow is None or shadow.tenant != event.tenant:
            self._state.violate(
                "15", f"an event of {event.tenant} is about another tenant's notification", id
            )
        if event.name == NOTIFICATION_FAILED:
            shadow.events.add(event.id)
        elif event.name == STATUS_CHANGED:
            shadow.tellings.add(event.id)
        if len(shadow.events) > shadow.failed or len(shadow.tellings) > shadow.turns:
            self._state.violate("4", f"{event.name} was published for a change that did not happen", id)


class LogChecker(logging.Handler):
    """Checks that no log line contains a recipient (invariant 15) or an unexpected error (invariant 12)."""

    def __init__(self, state: SimulationState) -> None:
        super().__init__(logging.DEBUG)
        self._state = state
        self._formatter = logging.Formatter()

    def emit(self, record: logging.LogRecord) -> None:
        if self._state.violation is not None:
            return
        line = self._formatter.format(record)
        if SECRET_MARKER in line:
            self._state.violate("15", f"a recipient or content in the log: {line[:300]}")
        expected = record.name == "homing.deliverer" and " raised" in record.getMessage()
        expected = expected or (record.name == "homing.relay" and "it is parked" in record.getMessage())
        about_loss = record.name in ("homing.store", "homing.settler")
        expected = expected or (about_loss and self._state.rollbacks > 0)
        if record.levelno >= logging.ERROR and not expected and not self._reports_purged(record):
            self._state.violate("12", f"the engine reports an error: {line[-1500:]}")

    def _reports_purged(self, record: logging.LogRecord) -> bool:
        """Returns True if the record reports a result whose notification was purged before it was settled.

        This happens only to a process that is suspended for longer than the retention.
        """
        is_report = record.name == "homing.settler" and "no longer has" in record.getMessage()
        if not is_report or not self._state.results_of_purged:
            return False
        self._state.results_of_purged -= 1
        return True


def check_read(state: SimulationState, tenant: str, found: Iterable[Notification]) -> None:
    """Checks that a tenant reads only its own notifications (invariant 15)."""
    for notification in found:
        shadow = state.shadows.get(notification.id)
        if notification.tenant != tenant or (shadow is not None and shadow.tenant != tenant):
            state.violate("15", f"{tenant} read a notification of {notification.tenant}", notification.id)


def _is_closed(breaker: Breaker) -> bool:
    return breaker.phase is Phase.CLOSED and breaker.forced is None


def _describe_breaker(breaker: Breaker) -> str:
    forced = f" forced {breaker.forced.value}" if breaker.forced is not None else ""
    trial = f" trial by {breaker.trial_by}" if breaker.trial_by else ""
    return f"{breaker.phase.value}{trial}{forced} v{breaker.version}"
