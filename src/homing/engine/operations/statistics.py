"""Reads notifications and statistics of one tenant, and computes retry times.

Settings passed as arguments affect only the result of the call. Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from heapq import nsmallest
from operator import itemgetter
from typing import Any, Literal

from msgspec import structs

from homing.core.errors import InvalidRequest, NotFound
from homing.core.lifecycle.states import LIVE, SUCCESSFUL, WAITING
from homing.core.notifications import Channel, Filter, History, Notification, Page, Priority, Status
from homing.core.plain_values import enum_member, is_storable
from homing.core.ports.runtime import Clock, RandomSource
from homing.core.ports.stores import Backend
from homing.core.request_decoding import read_filter
from homing.core.retry.backoff import base_delay_ms, delay_ms
from homing.core.retry.decide import allowed_attempts
from homing.core.retry.policy import FailoverWait, MatchKeys, Resolution, RetryPolicy
from homing.core.routing.breaker import BreakerGate, reopens_at
from homing.core.routing.delivery_modes import mode_of
from homing.core.routing.failover import Route, next_step
from homing.core.routing.splits import override_view
from homing.core.send_request import priority_of
from homing.core.statistics import (
    AttemptStatistics,
    AttemptSuccess,
    ErrorGroup,
    ErrorGroups,
    HealthMetrics,
    QueueHealth,
    RetryInfo,
    RollUp,
    Tally,
    count_statuses,
)
from homing.core.system_status import WorkerState
from homing.core.times import moment, span_ms
from homing.engine.delivery.breakers import Breakers
from homing.engine.operations.breaker_holds import BreakerHold, find_hold
from homing.engine.operations.cursors import check_cursor
from homing.engine.operations.explain import Explanation, describe_progress
from homing.engine.operations.health import check_thresholds, read_figures
from homing.engine.operations.policies import RULES_MAX_AGE_MS, Policies
from homing.engine.operations.workers import OVERDUE_AFTER_MS, PROCESS_SUFFIX, list_workers
from homing.engine.provider_roster import ProviderRoster
from homing.engine.settings import AlertThresholds

_PAGE = 500

_GROUPED = 10_000
"""Maximum number of dead letters that are grouped for one answer."""

_DEFAULT_TYPE = "message"
"""Type of a notification whose request names none."""


class QueueOperations:
    """Read operations of one tenant."""

    def __init__(
        self,
        tenant: str,
        *,
        backend: Backend,
        policies: Policies,
        roster: ProviderRoster,
        breakers: Breakers,
        clock: Clock,
        random_source: RandomSource,
        thresholds: AlertThresholds,
    ) -> None:
        self.tenant = tenant
        self._backend = backend
        self._policies = policies
        self._roster = roster
        self._breakers = breakers
        self._clock = clock
        self._random_source = random_source
        self._thresholds = thresholds

    async def get(self, id: str) -> Notification:
        """Returns one notification. Raises `NotFound` if this tenant has no notification with that id."""
        return (await self.history(id)).notification

    async def history(self, id: str) -> History:
        """Returns one notification with its attempts and all other changes."""
        found = await self._backend.get(self.tenant, id) if is_storable(id) else None
        if found is None:
            raise NotFound(f"there is no notification {id} for tenant {self.tenant!r}")
        return found

    async def list(
        self, filter: Filter | Mapping[str, Any] | None = None, *, limit: int = 50, cursor: str | None = None
    ) -> Page:
        """Returns a page of notifications, newest first. Pass the page's cursor to get the next page."""
        chosen = Filter() if filter is None else read_filter(filter)
        check_cursor(cursor)
        return await self._backend.list(self.tenant, chosen, limit=_limit(limit), cursor=cursor)

    async def explain(self, id: str) -> Explanation:
        """Explains a notification: which rule applies and why, what happened, and what happens next."""
        history = await self.history(id)
        await self._policies.refresh()
        n = history.notification
        resolution = self._resolution(n)
        split = None if n.pinned else self._roster.override_of(n.channel, n.id)
        await self._breakers.try_refresh()
        return Explanation(
            history=history,
            resolution=resolution,
            verdict=describe_progress(history),
            next_step=self._next_step(n, resolution.policy) + await self._why_held_or_overdue(n),
            split=None if split is None else override_view(split),
        )

    async def find_hold(self, notification: Notification) -> BreakerHold | None:
        """Returns the breaker that holds a waiting notification back, or None if none does.

        A breaker that reopens before the next attempt is due holds nothing back. One that an operator holds
        open only holds back what is due now.
        """
        if notification.status not in WAITING:
            return None
        await self._breakers.try_refresh()
        hold, due = find_hold(notification, self._roster, self._breakers), notification.next_retry_at
        if hold is None or (due is not None and due > (hold.until or await self._now())):
            return None
        return hold

    async def select_pending(
        self, limit: int = 50, max_attempts: int | None = None, delay: timedelta | None = None
    ) -> tuple[Notification, ...]:
        """Returns notifications that are due now, according to their policy or to the given settings."""
        if max_attempts is None and delay is None:
            return (await self._backend.waiting(self.tenant, limit=_limit(limit), ready=True)).items
        await self._policies.refresh(max_age_ms=RULES_MAX_AGE_MS)
        now = await self._now()

        def due_time(n: Notification) -> datetime | None:
            allowed = max_attempts if max_attempts is not None else self._allowed(n)
            if n.attempt_count - n.moves >= allowed or self.next_retry_time(n, delay, now=now) is not None:
                return None
            return n.next_retry_at or now

        return await self._earliest_due(_limit(limit), due_time)

    def calculate_delay(
        self,
        attempt: int,
        delay: timedelta | None = None,
        *,
        priority: Priority | str = Priority.MEDIUM,
        type: str = _DEFAULT_TYPE,
        origin: str = "",
        channel: Channel | str = Channel.EMAIL,
        keys: MatchKeys | None = None,
        jitter: bool = False,
    ) -> timedelta:
        """Returns the backoff after attempt number `attempt` at the only provider.

        It is 0 if `attempt` is 0 or less. Attempts that do not count, such as moves at once, are left out of
        `attempt`. The backoff starts at `delay` and doubles. If `delay` is None, it follows the policy of a
        notification with this priority, type, origin and channel, or with these `keys`, which also name a
        tenant. `jitter` adds the policy's jitter, which differs with each call.

        The rules are those that this process has read last. If that was five seconds ago, they are read again
        for the next call; `await policies.refresh()` reads them at once.
        """
        attempt = max(0, attempt)
        policy = self._policy_for(delay, keys or self._keys(priority, type, origin, channel))
        u = self._random_source.random() if jitter else 0.0
        ms = delay_ms(policy, attempt, u) if jitter else base_delay_ms(policy, attempt)
        return timedelta(milliseconds=ms)

    def should_retry(
        self,
        attempt: int,
        *,
        priority: Priority | str = Priority.MEDIUM,
        type: str = _DEFAULT_TYPE,
        origin: str = "",
        channel: Channel | str = Channel.EMAIL,
        keys: MatchKeys | None = None,
    ) -> bool:
        """Returns True if the policy allows another attempt after attempt number `attempt` has failed.

        The policy is found as in `calculate_delay`.
        """
        policy = self._policy_for(None, keys or self._keys(priority, type, origin, channel))
        return attempt < policy.max_attempts

    def next_retry_time(
        self, notification: Notification, delay: timedelta | None = None, *, now: datetime | None = None
    ) -> datetime | None:
        """Returns when the next attempt is due, or None if it is due now or no attempt will follow."""
        if notification.status not in WAITING:
            return None
        due = notification.next_retry_at
        if delay is not None and notification.last_attempt_at is not None:
            counted = notification.attempt_count - notification.moves
            due = notification.last_attempt_at + self.calculate_delay(counted, delay)
        return due if due is not None and due > (now or moment(self._clock.now_ms())) else None

    def is_ready(self, notification: Notification, delay: timedelta | None = None) -> bool:
        """Returns True if the notification waits and is due now."""
        return notification.status in WAITING and self.next_retry_time(notification, delay) is None

    async def retry_info(
        self, id: str, max_attempts: int | None = None, delay: timedelta | None = None
    ) -> RetryInfo:
        """Returns the retry state of one notification, according to its policy or to the given settings."""
        n, now = await self.get(id), await self._now()
        await self._policies.refresh(max_age_ms=RULES_MAX_AGE_MS)
        policy = self.policy_of(n) if delay is None else RetryPolicy(base_ms=span_ms(delay, "delay"))
        allowed = max_attempts if max_attempts is not None else self._allowed(n)
        counted = n.attempt_count - n.moves
        remaining = max(0, allowed - counted)
        due = self.next_retry_time(n, delay, now=now)
        return RetryInfo(
            notification_id=n.id,
            current_attempts=n.attempt_count,
            max_attempts=allowed,
            retries_remaining=remaining,
            has_more_retries=remaining > 0 and n.status in LIVE,
            last_attempt_at=n.last_attempt_at,
            next_retry_at=due,
            is_ready_for_retry=n.status in WAITING and due is None,
            status=n.status,
            error_message=n.last_error,
            current_delay_minutes=base_delay_ms(policy, counted) / 60_000,
            next_delay_minutes=base_delay_ms(policy, counted + 1) / 60_000,
            moves=n.moves,
            spent=n.spent,
        )

    async def retry_statistics(self) -> tuple[AttemptStatistics, ...]:
        """Returns counts of unsuccessful notifications, one row per number of attempts made.

        Notifications that were sent, or ended without a failure, are not counted.
        """
        found = await self._backend.tallies(self.tenant)
        tallies = [t for t in found if t.attempts and (t.status in LIVE or t.status is Status.FAILED)]
        return tuple(
            AttemptStatistics(
                attempts=n,
                count=sum(t.count for t in tallies if t.attempts == n),
                pending_count=count_statuses([t for t in tallies if t.attempts == n], *WAITING),
                failed_count=count_statuses([t for t in tallies if t.attempts == n], Status.FAILED),
            )
            for n in sorted({t.attempts for t in tallies if t.count})
        )

    async def success_by_attempt(self) -> tuple[AttemptSuccess, ...]:
        """Returns the success rate per number of attempts made, of all notifications, purged ones included.

        A notification that is still waiting or being sent counts in the total.
        """
        tallies = await self._backend.tallies(self.tenant)
        rows = []
        for n in sorted({t.attempts for t in tallies if t.attempts}):
            these = [t for t in tallies if t.attempts == n]
            sent, failed = _ever(these, *SUCCESSFUL), _ever(these, Status.FAILED)
            if total := sum(t.count + t.purged for t in these):
                rate = round(100.0 * sent / total, 2)
                rows.append(
                    AttemptSuccess(attempts=n, total=total, succeeded=sent, failed=failed, success_rate=rate)
                )
        return tuple(rows)

    async def waiting(
        self,
        delay: timedelta | None = None,
        *,
        limit: int = 50,
        by: Literal["due", "last-attempt"] = "due",
    ) -> tuple[Notification, ...]:
        """Returns notifications that were attempted before and are not due yet, earliest first.

        If `delay` is given, the due times are computed from it instead of the policy, and `next_retry_at` of
        each notification is such a time. With `by` set to `last-attempt`, returns all that wait for a retry,
        due or not, with the oldest last attempt first.
        """
        if by not in ("due", "last-attempt"):
            raise InvalidRequest("by", f"is {by!r}; it must be due or last-attempt")
        if by == "last-attempt":
            if delay is not None:
                raise InvalidRequest("delay", "has no effect on the order by the last attempt")
            return (await self._backend.retrying(self.tenant, limit=_limit(limit))).items
        if delay is None:
            return await self._in_backoff(_limit(limit))
        now = await self._now()

        def due_time(n: Notification) -> datetime | None:
            return self.next_retry_time(n, delay, now=now) if n.attempt_count else None

        found = await self._earliest_due(_limit(limit), due_time)
        return tuple(structs.replace(n, next_retry_at=due_time(n)) for n in found)

    async def _in_backoff(self, limit: int) -> tuple[Notification, ...]:
        """Returns at most `limit` waiting notifications that were attempted before.

        Reads ever larger pages until it has found enough of them.
        """
        asked = limit
        while True:
            page = await self._backend.waiting(self.tenant, limit=asked, ready=False)
            found = tuple(n for n in page.items if n.attempt_count)
            if len(found) >= limit or len(page.items) < asked:
                return found[:limit]
            asked *= 4

    async def health_metrics(self) -> HealthMetrics:
        """Returns metrics about retries: how many there are, and how often they succeed."""
        return _metrics(
            await self._backend.tallies(self.tenant), await self._backend.oldest_retry_at(self.tenant)
        )

    async def health(self) -> QueueHealth:
        """Returns the metrics about retries, and compares the figures of this tenant with the thresholds."""
        tallies = await self._backend.tallies(self.tenant)
        figures = await read_figures(self._backend, self.tenant, tallies)
        metrics = _metrics(tallies, figures.oldest_retry)
        checks = check_thresholds(figures, self._thresholds)
        healthy = not any(check.exceeded for check in checks)
        return QueueHealth(**structs.asdict(metrics), healthy=healthy, thresholds=tuple(checks))

    async def error_groups(
        self, limit: int = 50, *, status: Status | str = Status.FAILED, newest: int | None = None
    ) -> tuple[ErrorGroup, ...]:
        """Returns dead letters grouped by error, the largest group first.

        With the status `retrying`, groups what waits for a retry instead, by the error of the last attempt.
        With `newest`, groups only this many notifications, those that were accepted last.
        """
        chosen = enum_member(Status, status, "status")
        if chosen not in (Status.FAILED, Status.RETRYING):
            raise InvalidRequest("status", f"is {chosen.value}; only failed and retrying have errors")
        return await self._backend.error_groups(
            self.tenant, limit=_limit(limit), status=chosen, newest=newest
        )

    async def dead_letter_groups(self, limit: int = 50) -> ErrorGroups:
        """Returns the newest dead letters grouped by error, with what is new in the last two hours.

        At most 10,000 are grouped. If there are more, the result is marked as not complete.
        """
        tallies = await self._backend.tallies(self.tenant)
        total = count_statuses(tallies, Status.FAILED)
        items = await self._backend.error_groups(self.tenant, limit=_limit(limit), newest=_GROUPED)
        return ErrorGroups(items=items, total=total, complete=total <= _GROUPED)

    async def queue_counts(self) -> dict[str, int]:
        """Returns the number of notifications by status."""
        tallies = await self._backend.tallies(self.tenant)
        return {status.value: count_statuses(tallies, status) for status in Status}

    async def roll_ups(self, since: timedelta = timedelta(hours=24)) -> tuple[RollUp, ...]:
        """Returns hourly counts by channel and provider, from the time `since` ago until now."""
        return await self._backend.roll_ups(self.tenant, since_ms=span_ms(since, "since"))

    def _resolution(self, n: Notification) -> Resolution:
        return self._policies.book.resolve(
            MatchKeys(n.tenant, n.type, n.origin, n.channel, n.priority), n.mode
        )

    def policy_of(self, n: Notification) -> RetryPolicy:
        """Returns the retry policy that applies to a notification."""
        return self._resolution(n).policy

    def _allowed(self, n: Notification) -> int:
        return allowed_attempts(n, self.policy_of(n))

    def _keys(self, priority: Priority | str, type: str, origin: str, channel: Channel | str) -> MatchKeys:
        return MatchKeys(
            self.tenant, type, origin, enum_member(Channel, channel, "channel"), priority_of(priority)
        )

    def _policy_for(self, delay: timedelta | None, keys: MatchKeys) -> RetryPolicy:
        """Returns the policy of a queued notification with these keys, or one that starts at `delay`."""
        if delay is not None:
            return RetryPolicy(base_ms=span_ms(delay, "delay"))
        channel = enum_member(Channel, keys.channel, "channel")
        priority = priority_of(keys.priority)
        mode = mode_of(synchronous=False, type_=keys.type, priority=priority, bulk=False)
        return self._policies.recent_book().policy(
            structs.replace(keys, channel=channel, priority=priority), mode
        )

    def _next_step(self, n: Notification, policy: RetryPolicy) -> str:
        if n.status is Status.SENDING:
            return f"attempt {n.attempt_count} is in flight at {n.provider}"
        if n.status is Status.IN_DOUBT:
            return "waits for a receipt or a lookup; an operator can resolve it with homing resolve"
        if n.status not in WAITING:
            return "no further attempt is planned"
        assert n.next_retry_at is not None, "waiting notifications have a due time"
        held = f" ({n.reason.value.lower()})" if n.reason is not None else ""
        at = n.next_retry_at.isoformat(timespec="seconds")
        if n.expires_at is not None and n.expires_at <= n.next_retry_at:
            ends = n.expires_at.isoformat(timespec="seconds")
            return f"expires at {ends}, before its next attempt at {at}{held}"
        allowed, number = allowed_attempts(n, policy), n.attempt_count + 1
        if number - n.moves > allowed:  # a changed rule allows fewer than before
            made = "the only attempt was" if allowed == 1 else f"all {allowed} attempts were"
            return f"becomes a dead letter at {at}{held}: {made} made"
        free = f" ({number - n.moves} counted)" if n.moves else ""
        attempt = f"attempt {number}{free} of {allowed} at {at}{held}"
        route = () if n.pinned else self._roster.route_of(n.channel, n.id)
        stopped = self._stopped_at(route, n.next_retry_at)
        provider, why = n.provider, ""
        if provider in stopped:
            other = next_step(route, spent=n.spent, stopped=stopped, holds={}, now=0)
            if other is not None:
                provider, why = other.provider, f", because the breaker of {n.provider} is open"
        return f"{attempt} goes to {provider}{why}{self._then(n, policy, provider, route, stopped)}"

    def _stopped_at(self, route: Route, at: datetime) -> frozenset[str]:
        """Returns the providers of a route whose breakers, as read last, allow no attempt at that time."""
        stopped = set()
        for name in (step.provider for step in route):
            ends_ms = reopens_at(self._breakers.state(name))
            if self._breakers.gate(name) is BreakerGate.STOP and (ends_ms is None or moment(ends_ms) > at):
                stopped.add(name)
        return frozenset(stopped)

    def _then(
        self, n: Notification, policy: RetryPolicy, provider: str, route: Route, stopped: frozenset[str]
    ) -> str:
        """Returns what follows if the next attempt fails at `provider`, and which providers are spent."""
        other = next_step(route, spent={*n.spent, provider}, stopped=stopped, holds={}, now=0)
        last = n.attempt_count + 1 - n.moves >= allowed_attempts(n, policy)
        if last and policy.failover_wait is FailoverWait.BACKOFF:
            other = None  # such a move counts
        failures = f"{policy.failover_after} failure{'' if policy.failover_after == 1 else 's'}"
        when = "at once" if policy.failover_wait is FailoverWait.NONE else "after the backoff"
        then = f" (then {other.provider} {when}, after {failures})" if other else ""
        return f"{then}; spent: {', '.join(n.spent)}" if n.spent else then

    async def _why_held_or_overdue(self, n: Notification) -> str:
        """Returns a remark for a notification that cannot be attempted when it is due, and why."""
        hold = await self.find_hold(n)
        return await self._why_overdue(n) if hold is None else f"; {hold.describe()}"

    async def _why_overdue(self, n: Notification) -> str:
        """Returns a remark for a notification that is overdue because no live worker can send it."""
        if n.status not in WAITING or n.next_retry_at is None:
            return ""
        late = await self._now() - n.next_retry_at
        if late <= timedelta(milliseconds=OVERDUE_AFTER_MS):
            return ""
        workers = await list_workers(self._backend)
        live = [one for one in workers if one.state is WorkerState.LIVE]
        runs = [one.seen_at for one in workers if one.name.endswith(PROCESS_SUFFIX)]
        if not live and runs:
            last = max(runs).isoformat(timespec="seconds")
            return f"; it is overdue, and the last run of homing process was at {last}"
        if not live:
            return "; it is overdue because no worker is live: start homing worker"
        if all(n.provider not in one.providers for one in live):
            return (
                f"; it is overdue because no live worker has the provider {n.provider}: start one that"
                " has it, or use homing retry --provider"
            )
        return ""

    async def _earliest_due(
        self, limit: int, due_time: Callable[[Notification], datetime | None]
    ) -> tuple[Notification, ...]:
        """Returns the waiting notifications with the earliest due times, in that order.

        Skips a notification if `due_time` returns None. At most `limit` notifications and one page are in
        memory at a time.
        """
        earliest: list[tuple[datetime, str, Notification]] = []
        cursor: str | None = None
        while True:
            page = await self._backend.list(
                self.tenant, Filter(statuses=(Status.PENDING, Status.RETRYING)), limit=_PAGE, cursor=cursor
            )
            found = [(due, n.id, n) for n in page.items if (due := due_time(n)) is not None]
            earliest = nsmallest(limit, earliest + found, key=itemgetter(0, 1))
            cursor = page.cursor
            if cursor is None:
                return tuple(n for _, _, n in earliest)

    async def _now(self) -> datetime:
        return moment(await self._backend.now_ms())


def average_attempts(tallies: Sequence[Tally]) -> float:
    """Returns the average number of attempts of the notifications that are or were retried, or 0."""
    retried = _retried(tallies)
    number = sum(t.count for t in retried)
    return round(sum(t.attempts * t.count for t in retried) / number, 1) if number else 0.0


def _metrics(tallies: Sequence[Tally], oldest_retry: datetime | None) -> HealthMetrics:
    """Returns the metrics about retries."""
    retried = _retried(tallies)
    retrying = sum(t.count for t in retried)
    sent = _ever(tallies, *SUCCESSFUL)
    failed = _ever(tallies, Status.FAILED)
    recovered = _ever([t for t in tallies if t.attempts > 1], *SUCCESSFUL)
    total = sum(t.count + t.purged for t in tallies)
    return HealthMetrics(
        total_retrying=retrying,
        avg_attempts=average_attempts(tallies),
        max_attempts=max((t.attempts for t in retried), default=0),
        oldest_retry=oldest_retry,
        pending_retry_count=count_statuses(tallies, Status.RETRYING),
        permanently_failed_count=count_statuses(
            [t for t in retried if t.status is Status.FAILED], Status.FAILED
        ),
        total_notifications=total,
        sent_count=sent,
        failed_count=failed,
        recovered_by_retry_count=recovered,
        success_rate=_per_cent(sent, total),
        failure_rate=_per_cent(failed, total),
        retry_recovery_rate=_per_cent(recovered, sent),
    )


def _retried(tallies: Sequence[Tally]) -> list[Tally]:
    """Returns the counts of the notifications that are being retried, or have failed after a retry."""
    return [
        t
        for t in tallies
        if t.count and ((t.status is Status.RETRYING) or (t.status is Status.FAILED and t.attempts > 1))
    ]


def _ever(tallies: Sequence[Tally], *statuses: Status) -> int:
    return sum(t.count + t.purged for t in tallies if t.status in statuses)


def _per_cent(part: int, whole: int) -> float:
    return round(100.0 * part / whole, 1) if whole else 0.0


def _limit(limit: int) -> int:
    if not 1 <= limit <= 10_000:
        raise InvalidRequest("limit", f"is {limit}; it must be between 1 and 10000")
    return limit
