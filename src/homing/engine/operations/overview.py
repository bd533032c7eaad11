"""The state of a tenant's deliveries right now, read in a few bounded queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from urllib.parse import urlsplit

from msgspec.structs import replace

from homing.core.errors import InvalidRequest
from homing.core.lifecycle.outcomes import AttemptRecord
from homing.core.notifications import Channel, Filter, Notification, Reason, Status
from homing.core.overview import (
    MINUTE,
    FailingHost,
    LastOutcome,
    Overview,
    ProviderNow,
    ProviderOverview,
    TroubledProvider,
    build_channel,
    build_points,
    give_verdict,
)
from homing.core.ports.stores import Backend
from homing.core.redaction import redact
from homing.core.routing.breaker import Phase
from homing.core.routing.provider_views import ProviderView
from homing.core.statistics import (
    DeliveryCounts,
    MinuteRollUp,
    WaitingGroup,
    WaitingGroups,
    count_statuses,
)
from homing.core.times import moment, span_ms
from homing.engine.delivery.breakers import Breakers
from homing.engine.operations.providers import breaker_view
from homing.engine.operations.split_overrides import SplitOverrides
from homing.engine.operations.workers import count_live_workers
from homing.engine.provider_roster import ProviderRoster

_HOUR_MS = 3_600_000

_QUARTER_MS = 15 * 60_000

_COUNTED = 5_000
"""Maximum number of waiting notifications that are counted for an overview."""

MOST_WAITING = 200_000
"""Maximum number of waiting notifications that a histogram counts."""

_FAILING = 500
"""Number of the newest failing webhooks whose hosts are counted."""

_SCANNED = 2_000
"""Number of the newest notifications among which failing webhooks are looked for."""

_MOST_HOSTS = 10

_OUTCOMES = 10
"""Number of last outcomes per provider."""

_ATTEMPTED = 1_000
"""Number of the newest notifications among whose attempts the last outcomes are looked for."""


class OverviewOperations:
    """Reads the state of one tenant's deliveries."""

    def __init__(
        self,
        tenant: str,
        *,
        backend: Backend,
        roster: ProviderRoster,
        breakers: Breakers,
        splits: SplitOverrides,
        list_providers: Callable[[], Awaitable[tuple[ProviderView, ...]]],
    ) -> None:
        self._tenant = tenant
        self._backend = backend
        self._roster = roster
        self._breakers = breakers
        self._splits = splits
        self._list_providers = list_providers

    async def overview(self) -> Overview:
        """Returns what is wrong in one sentence, and per channel the rate, success, lateness and backlog."""
        backend, tenant = self._backend, self._tenant
        await self._breakers.try_refresh()
        minutes = await backend.minute_roll_ups(tenant, since_ms=_HOUR_MS)
        quarters = await backend.minute_roll_ups(tenant, since_ms=24 * _HOUR_MS, step_ms=_QUARTER_MS)
        waiting = await backend.waiting_groups(tenant, step_ms=24 * _HOUR_MS, limit=_COUNTED)
        tallies = await backend.tallies(tenant)
        live = await count_live_workers(backend)
        splits = await self._splits.in_force()
        now = moment(await backend.now_ms())  # read last, so that nothing is late since a time after it
        channels = tuple(
            build_channel(
                channel,
                now=now,
                minutes=[one for one in minutes if one.channel is channel],
                quarters=[one for one in quarters if one.channel is channel],
                waiting=[one for one in waiting.groups if one.channel is channel],
                complete=waiting.complete,
                troubles=self._troubles(channel),
                split=splits.get(channel),
            )
            for channel in self._channels(quarters, waiting)
        )
        failed = sum(point.failed for one in channels for point in one.last_hour)
        unacknowledged = (await backend.unacknowledged(tenant)).count
        level, verdict = give_verdict(
            now, channels, live_workers=live, failed_last_hour=failed, unacknowledged=unacknowledged
        )
        return Overview(
            now=now,
            level=level,
            verdict=verdict,
            channels=channels,
            live_workers=live,
            dead_letters=count_statuses(tallies, Status.FAILED),
            failed_last_hour=failed,
            unacknowledged=unacknowledged,
        )

    async def waiting_histogram(
        self,
        step: timedelta = timedelta(minutes=15),
        span: timedelta = timedelta(hours=24),
        *,
        most: int = MOST_WAITING,
    ) -> WaitingGroups:
        """Groups what waits by lane, provider, reason and due time, in steps, soonest first.

        What is due after the end of the span is in a last group without an own step: its `due_from` is the
        end of the span. At most `most` notifications are counted, those that are due first.
        """
        step_ms = span_ms(step, "step")
        if not 60_000 <= step_ms <= 24 * _HOUR_MS:
            raise InvalidRequest("step", "must be between a minute and a day")
        if not 1 <= most <= MOST_WAITING:
            raise InvalidRequest("most", f"is {most}; it must be between 1 and {MOST_WAITING}")
        found = await self._backend.waiting_groups(self._tenant, step_ms=step_ms, limit=most)
        end = moment(await self._backend.now_ms()) + span
        merged: dict[tuple[str, str, Reason | None, datetime | None], WaitingGroup] = {}
        for one in found.groups:
            due_from = end if one.due_from is not None and one.due_from > end else one.due_from
            key = (one.lane, one.provider, one.reason, due_from)
            before = merged.get(key)
            count = one.count + (before.count if before else 0)
            merged[key] = replace(one, due_from=due_from, count=count)
        return WaitingGroups(groups=tuple(merged.values()), complete=found.complete)

    async def provider_overview(self) -> ProviderOverview:
        """Returns each provider with its breaker, and what it did for this tenant in the last hour."""
        backend, tenant = self._backend, self._tenant
        now = moment(await backend.now_ms())
        minutes = await backend.minute_roll_ups(tenant, since_ms=_HOUR_MS)
        waiting = await backend.waiting_groups(tenant, limit=_COUNTED)
        of_channel = Counter[Channel]()
        for one in minutes:
            of_channel[one.channel] += one.attempts
        last = await backend.last_attempts(tenant, per_provider=_OUTCOMES, scan=_ATTEMPTED)
        items = tuple(
            _provider_now(view, now, minutes, of_channel, waiting, last)
            for view in await self._list_providers()
        )
        failing = await backend.list(
            tenant,
            Filter(statuses=(Status.FAILED, Status.RETRYING), channel=Channel.WEBHOOK),
            limit=_FAILING,
            scan=_SCANNED,
        )
        return ProviderOverview(
            now=now, items=items, complete=waiting.complete, failing_hosts=_failing_hosts(failing.items)
        )

    def _channels(self, counts: Sequence[DeliveryCounts], waiting: WaitingGroups) -> list[Channel]:
        found = {one.channel for one in counts} | {one.channel for one in waiting.groups}
        return [channel for channel in Channel if channel in found or channel in self._roster.channels]

    def _troubles(self, channel: Channel) -> list[TroubledProvider]:
        """Returns the providers on the channel's route whose breaker is not closed, or is forced."""
        found, route = [], [step.provider for step in self._roster.route(channel)]
        working = [provider for provider in route if self._breakers.may_take_new(provider)]
        for provider in route:
            view = breaker_view(self._breakers.state(provider), self._breakers.now())
            if view.phase is not Phase.CLOSED or view.forced:
                found.append(
                    TroubledProvider(
                        provider=provider,
                        phase=view.phase,
                        forced=view.forced,
                        since=view.since,
                        failed_over_to=next((other for other in working if other != provider), None),
                    )
                )
        return found


def _provider_now(
    view: ProviderView,
    now: datetime,
    minutes: Sequence[MinuteRollUp],
    of_channel: Mapping[Channel, int],
    waiting: WaitingGroups,
    last: Sequence[tuple[str, AttemptRecord]],
) -> ProviderNow:
    mine = [one for one in minutes if one.provider == view.id]
    attempts = sum(one.attempts for one in mine)
    sent, delivered = sum(one.sent for one in mine), sum(one.delivered for one in mine)
    bounced = sum(one.bounced for one in mine)
    of_mine = Counter[Channel]()
    for one in mine:
        of_mine[one.channel] += one.attempts
    return ProviderNow(
        provider=view,
        attempts=attempts,
        sent=sent,
        delivered=delivered,
        failed=sum(one.failed for one in mine),
        retried=sum(one.retried for one in mine),
        bounced=bounced,
        without_receipt=max(0, sent - delivered - bounced),
        mean_attempt_ms=sum(one.attempt_ms for one in mine) // attempts if attempts else None,
        share={
            channel: round(100.0 * of_mine[channel] / number, 1)
            for channel, number in of_channel.items()
            if number and channel in view.channels
        },
        waiting=sum(one.count for one in waiting.groups if one.provider == view.id),
        last_outcomes=tuple(
            LastOutcome(
                at=moment(one.started_at),
                notification_id=id,
                attempt=one.number,
                outcome=one.outcome,
                latency_ms=one.latency_ms,
                error_code=one.error_code,
                error=None if one.error is None else redact(one.error),
            )
            for id, one in last
            if one.provider == view.id
        ),
        last_hour=build_points(mine, now=now, step=MINUTE, number=60),
    )


def _failing_hosts(notifications: Sequence[Notification]) -> tuple[FailingHost, ...]:
    found: dict[str, list[Notification]] = {}
    for one in notifications:
        host = urlsplit(one.recipient.url or "").hostname
        if host:
            found.setdefault(host, []).append(one)
    worst = sorted(found.items(), key=lambda pair: (-len(pair[1]), pair[0]))[:_MOST_HOSTS]
    return tuple(
        FailingHost(host=host, count=len(those), last_error=those[0].last_error, example_id=those[0].id)
        for host, those in worst
    )
