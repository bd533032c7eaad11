"""Checks the counts (invariant 1) and the idempotency and content of requests (invariants 3, 12 and 25)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from homing.core.lifecycle.claims import Acceptance, NewNotification, Submission
from homing.core.notifications import Mode, Status
from homing.core.statistics import DeliveryCounts, MinuteRollUp, RollUp, Tally
from homing.core.times import moment
from simulation.shadow_state import SimulationState

TallyKey = tuple[str, int]
"""Key of a count: (status, attempts)."""

GoalKey = tuple[str, Mode]
"""Key of the counts of latency goals: (tenant, mode)."""

_GOALS_MS = {Mode.SYNCHRONOUS: 2_000, Mode.PRIORITY: 5_000, Mode.STANDARD: 30_000, Mode.BULK: 300_000}
"""Latency goals. The core has the same table; it is repeated here, so that a mistake in it is noticed."""


class CountChecker:
    """Keeps its own counts and compares them with the store's after every transaction."""

    def __init__(self, state: SimulationState) -> None:
        self._state = state
        self._cells: dict[str, dict[TallyKey, int]] = {}
        self._purged: dict[str, dict[TallyKey, int]] = {}
        self._goals: dict[GoalKey, tuple[int, int]] = {}
        """(tenant, mode) → (notifications sent in time, notifications sent too late)."""

    def born(self, tenant: str, cell: TallyKey) -> None:
        _count(self._cells.setdefault(tenant, {}), cell, 1)

    def moved(self, tenant: str, before: TallyKey, after: TallyKey) -> None:
        _count(self._cells[tenant], before, -1)
        _count(self._cells[tenant], after, 1)

    def purged(self, tenant: str, cell: TallyKey) -> None:
        _count(self._cells[tenant], cell, -1)
        _count(self._purged.setdefault(tenant, {}), cell, 1)

    def sent(self, key: GoalKey, took_ms: int) -> None:
        """Counts a notification that was sent `took_ms` after it was accepted or to be sent."""
        met, missed = self._goals.get(key, (0, 0))
        in_time = took_ms <= _GOALS_MS[key[1]]
        self._goals[key] = (met + in_time, missed + (not in_time))

    def check_goals(self, stored: Mapping[GoalKey, tuple[int, int]]) -> None:
        """Checks the counts of met and missed latency goals."""
        if stored != self._goals:
            wrong = sorted({*stored.items()} ^ {*self._goals.items()})
            self._state.violate("1", f"the counts of latency goals are wrong: {wrong}")

    def done(self, tenants: Iterable[str], cells: Callable[[str], Mapping[TallyKey, int]]) -> None:
        """Checks the counts of these tenants after a transaction."""
        for tenant in tenants:
            if cells(tenant) != self._cells.get(tenant, {}):
                self._wrong(tenant, cells(tenant), self._cells.get(tenant, {}))

    def check_tallies(self, tenant: str, tallies: Iterable[Tally]) -> None:
        """Checks the counts that a reader gets, including those of purged rows."""
        tallies = tuple(tallies)
        counts: dict[TallyKey, int] = {(t.status, t.attempts): t.count for t in tallies if t.count}
        purged: dict[TallyKey, int] = {(t.status, t.attempts): t.purged for t in tallies if t.purged}
        for theirs, mine in ((counts, self._cells.get(tenant, {})), (purged, self._purged.get(tenant, {}))):
            if theirs != mine:
                self._wrong(tenant, theirs, mine)

    def check_sums(self, tenant: str, hours: Sequence[RollUp], minutes: Sequence[MinuteRollUp]) -> None:
        """Checks that the sums of the minutes of each hour are those of the hour."""
        of_hours = {_place(one, one.hour_at): _sums(one) for one in hours}
        of_minutes = {_place(one, one.minute_at): _sums(one) for one in minutes}
        first = moment(self._state.now) - timedelta(days=1)
        for place in sorted({*of_hours, *of_minutes}):
            if place[0] >= first and of_hours.get(place) != of_minutes.get(place):
                said = f"hour {of_hours.get(place)}, minutes {of_minutes.get(place)}"
                self._state.violate("1", f"the sums of {tenant} at {place} differ: {said}")
        for one in minutes:
            if sum(one.lateness) > one.sent:
                self._state.violate("1", f"more of {tenant} were late than sent: {one}")

    def _wrong(self, tenant: str, theirs: Mapping[TallyKey, int], mine: Mapping[TallyKey, int]) -> None:
        wrong = sorted(
            f"{status}/{attempts}: stored {theirs.get((status, attempts), 0)}, "
            f"actual {mine.get((status, attempts), 0)}"
            for status, attempts in {*mine, *theirs}
            if mine.get((status, attempts)) != theirs.get((status, attempts))
        )
        self._state.violate("1", f"the counts of {tenant} are wrong: {'; '.join(wrong)}")


def _place(one: DeliveryCounts, at: datetime) -> tuple[datetime, str, str]:
    return at, one.channel.value, one.provider


def _sums(one: DeliveryCounts) -> tuple[int, ...]:
    return one.accepted, one.sent, one.delivered, one.failed, one.retried, one.attempts


class _Answered(Struct, frozen=True):
    """Response to the first request with an idempotency key."""

    fingerprint: str
    batch_id: str
    ids: tuple[str, ...]
    at: int


class RequestChecker:
    """Checks that an idempotency key creates one set of rows, and a dedup window one notification."""

    def __init__(self, state: SimulationState) -> None:
        self._state = state
        self._keys: dict[tuple[str, str], _Answered] = {}
        self._dedups: dict[tuple[str, str], tuple[int, str]] = {}

    def accepted(self, batch: Sequence[Submission], answers: Sequence[Acceptance], born: set[str]) -> None:
        """Checks the response to a batch. `born` has the ids of the rows that the batch stored."""
        for submission, answer in zip(batch, answers, strict=True):
            new = [n.id for n in submission.notifications if n.id in born]
            self._check_key(submission, answer, new)
            if answer.conflict:
                continue
            if len(answer.ids) != len(submission.notifications):
                self._state.violate("3", "the response and the request have different numbers of ids")
            repeated = answer.batch_id != submission.batch_id  # its idempotency key is known
            for notification, id in zip(submission.notifications, answer.ids, strict=True):
                if not repeated and id != notification.id:
                    self._check_duplicate(notification, id)
                if notification.id in new:
                    self._check_earlier(notification)
                if notification.dedup_key is not None and notification.id in new:
                    self._check_window(submission.tenant, notification.dedup_key, notification)

    def _check_key(self, submission: Submission, answer: Acceptance, new: list[str]) -> None:
        if submission.idempotency_key is None:
            return
        state, key = self._state, (submission.tenant, submission.idempotency_key)
        known = self._keys.get(key)
        forgotten = known is not None and state.now - known.at >= state.plan.retention.keys_ms
        as_new = bool(new) or (answer.batch_id == submission.batch_id and not answer.conflict)
        if known is None or (forgotten and as_new):  # a duplicate by its dedup key has no new row
            if not answer.conflict:
                at = state.now
                self._keys[key] = _Answered(submission.fingerprint, answer.batch_id, answer.ids, at)
            return
        if new:
            state.violate("3", "the same idempotency key created a second set of rows", new[0])
        if submission.fingerprint != known.fingerprint and not answer.conflict:
            state.violate("3", "a different body with the same key was accepted")
        same = (answer.batch_id, answer.ids) == (known.batch_id, known.ids)
        if submission.fingerprint == known.fingerprint and not same:
            state.violate("3", "the same request returned different ids")

    def _check_earlier(self, new: NewNotification) -> None:
        shadow = self._state.shadows[new.id]
        if (shadow.attempts_before, shadow.max_attempts) != (new.attempts_before, new.max_attempts):
            self._state.violate("12", "its attempts in another system were not stored", new.id)

    def _check_duplicate(self, new: NewNotification, earlier: str) -> None:
        """Checks the notification that was returned in place of a new one with the same dedup key.

        A reported failure cannot always be matched to an attempt whose answer was lost. Settlements after a
        loss of commits are not followed, so which attempts may have been taken is not known then.
        """
        shadow = self._state.shadows.get(earlier)
        if shadow is None or shadow.status is not Status.CANCELLED or shadow.rolled_back:
            return
        if not shadow.is_taken and not shadow.unsure:
            self._state.violate("25", f"not accepted, because the cancelled {earlier} counts", new.id)

    def _check_window(self, tenant: str, dedup_key: str, new: NewNotification) -> None:
        state = self._state
        at, earlier = self._dedups.get((tenant, dedup_key), (None, ""))
        shadow = state.shadows.get(earlier)
        cancelled = shadow is not None and shadow.status is Status.CANCELLED and not shadow.is_taken
        inside = at is not None and 0 <= state.now - at < new.dedup_window_ms and not state.jumps
        if inside and not cancelled:
            state.violate("3", f"accepted again within its dedup window (as {earlier})", new.id)
        self._dedups[tenant, dedup_key] = (state.now, new.id)


def _count(cells: dict[TallyKey, int], cell: TallyKey, by: int) -> None:
    number = cells.get(cell, 0) + by
    if number:
        cells[cell] = number
    else:
        del cells[cell]
