"""The state of deliveries right now: figures per channel, and one sentence that says what is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from typing import Any

from msgspec import Struct

from homing.core.durations import format_duration
from homing.core.notifications import Channel, OutcomeKind, Reason
from homing.core.routing.breaker import Phase
from homing.core.routing.provider_views import ProviderView
from homing.core.routing.splits import SplitOverrideView
from homing.core.statistics import MinuteRollUp, WaitingGroup, lateness_quantile

MINUTE = timedelta(minutes=1)

LATE_AFTER_MS = 60_000
"""A channel is late if its notifications wait, or were sent, later than this."""

RECENT = timedelta(minutes=5)
"""Time over which the rate and the lateness of a channel are computed."""

_STUCK_AFTER_MS = 5_000
"""A channel whose providers are only on trial is in trouble if something has been due for this long."""

_ON_PURPOSE = (Reason.QUIET_HOURS, Reason.RATE_LIMIT)
"""Reasons of waits that do not make a notification late."""

_NAMES = {Channel.SMS: "SMS"}

_PER_CENT = 100.0

_FEW = 0.01
"""Share of a day's notifications that may wait for a retry without being worth a warning."""


class VerdictLevel(StrEnum):
    """How bad the state is."""

    OK = "ok"
    WARNING = "warning"
    """Something needs attention, but notifications are delivered in time."""
    PROBLEM = "problem"
    """Notifications are late or are not delivered."""


class OverviewPoint(Struct, frozen=True, kw_only=True, rename="camel"):
    """What happened on one channel in one step of time."""

    at: datetime
    """Start of the step."""
    accepted: int = 0
    attempts: int = 0
    sent: int = 0
    failed: int = 0
    """Number of new dead letters."""
    retried: int = 0
    p99_late_ms: int | None = None
    """How late 99 % of what was sent was at most, in milliseconds. None if nothing was sent."""
    oldest_ms: int | None = None
    """For how long the oldest notification that was late in this step had been due at most, in milliseconds.
    Estimated from what is late now and from how late notifications were sent since. None for providers."""


class TroubledProvider(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A provider of a channel whose breaker is not closed, or is forced."""

    provider: str
    phase: Phase
    forced: bool = False
    since: datetime | None = None
    failed_over_to: str | None = None
    """Provider that gets its notifications meanwhile. None if there is no other one that works."""


class ChannelNow(Struct, frozen=True, kw_only=True, rename="camel"):
    """The state of one channel."""

    channel: Channel
    per_minute: float
    """Number of notifications sent per minute, in the last five minutes."""
    success_rate: float | None
    """Percentage of what ended in the last hour that was sent. None if nothing ended."""
    p99_late_ms: int | None
    """How late 99 % of what was sent in the last five minutes was at most. None if nothing was sent."""
    waiting: int
    """Number of notifications that wait, also of those scheduled for later."""
    late: int
    """Number of those that should have been sent already. Waits on purpose do not count."""
    oldest_at: datetime | None
    """Since when the oldest of the late ones should have been sent. None if none is late."""
    complete: bool
    """False if more wait than were counted."""
    works: bool = False
    """True if only single notifications are late, such as those to a mailbox that is full: no more is due
    than is sent in a minute, and most attempts of the last minutes succeeded in time."""
    troubles: tuple[TroubledProvider, ...] = ()
    """Providers of the channel whose breaker is not closed, or is forced."""
    split: SplitOverrideView | None = None
    """Override of how first attempts are split between the channel's providers. None if the settings
    decide."""
    last_hour: tuple[OverviewPoint, ...] = ()
    """One point per minute, oldest first, also for minutes without any notification."""
    last_day: tuple[OverviewPoint, ...] = ()
    """One point per quarter of an hour, oldest first."""

    @property
    def is_used(self) -> bool:
        """True if something waits, or was accepted in the last day."""
        return bool(self.waiting) or any(point.accepted for point in self.last_day)

    @property
    def is_stopped(self) -> bool:
        """True if no provider of the channel works: one is open, and no other one gets its notifications."""
        return any(one.phase is Phase.OPEN and one.failed_over_to is None for one in self.troubles)

    def is_stuck(self, now: datetime) -> bool:
        """Returns True if notifications wait because the providers are only tried now and then."""
        on_trial = any(
            one.phase is Phase.HALF_OPEN and one.failed_over_to is None and not one.forced
            for one in self.troubles
        )
        return on_trial and self.waits_ms(now) > _STUCK_AFTER_MS

    def has_no_provider(self, now: datetime) -> bool:
        """Returns True if no provider of the channel works, or its providers are only tried now and then."""
        return self.is_stopped or self.is_stuck(now)

    def waits_ms(self, now: datetime) -> int:
        """Returns for how long the oldest notification that is late has been due."""
        return 0 if self.oldest_at is None else (now - self.oldest_at) // timedelta(milliseconds=1)

    def late_ms(self, now: datetime) -> int:
        """Returns how late the channel is: as the oldest that waits, or what was sent last."""
        return max(self.waits_ms(now), self.p99_late_ms or 0)

    def has_retries(self, now: datetime, *, least: float = 0.0) -> bool:
        """Returns True if the channel works, but single notifications wait for a retry for long.

        They must be more than `least`, a share of what was sent in the last day.
        """
        sent = sum(point.sent for point in self.last_day)
        return self.works and self.waits_ms(now) > LATE_AFTER_MS and self.late > least * sent


class FailingHost(Struct, frozen=True, kw_only=True, rename="camel"):
    """A host of recipients' endpoints to which notifications fail or wait for a retry."""

    host: str
    count: int
    """Number of the newest notifications that failed there or wait for a retry."""
    last_error: str | None
    """Error of the newest of them."""
    example_id: str


class LastOutcome(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The result of one attempt at a provider."""

    at: datetime
    """When the attempt began."""
    notification_id: str
    attempt: int
    """Number of the attempt of its notification."""
    outcome: OutcomeKind
    latency_ms: int
    error_code: str | None = None
    error: str | None = None


class ProviderNow(Struct, frozen=True, kw_only=True, rename="camel"):
    """What a provider did for a tenant in the last hour."""

    provider: ProviderView
    attempts: int
    sent: int
    """Number of messages that the provider accepted."""
    delivered: int
    """Number of messages that it reported as delivered."""
    failed: int
    """Number of new dead letters whose last attempt was made at this provider."""
    retried: int
    bounced: int
    without_receipt: int
    """Number of messages accepted in the last hour, less those reported as delivered or bounced. Meaningful
    for providers that send receipts."""
    mean_attempt_ms: int | None
    """Average duration of an attempt, in milliseconds. None if there was none."""
    share: Mapping[Channel, float]
    """Channel → percentage of the channel's attempts that were made at this provider."""
    waiting: int
    """Number of notifications that wait for their next attempt at this provider."""
    last_outcomes: tuple[LastOutcome, ...]
    """The last attempts at this provider, the latest first, among those of the newest 1,000 notifications."""
    last_hour: tuple[OverviewPoint, ...]
    """One point per minute, oldest first."""


class ProviderOverview(Struct, frozen=True, kw_only=True, rename="camel"):
    """The providers, with what they did for a tenant in the last hour."""

    now: datetime
    items: tuple[ProviderNow, ...]
    complete: bool
    """False if more notifications wait than were counted."""
    failing_hosts: tuple[FailingHost, ...]
    """Hosts of webhooks that fail most, among the newest 2,000 notifications."""


class OpenAlert(Struct, frozen=True, kw_only=True, rename="camel"):
    """An alert whose cause still exists, or existed a few minutes ago."""

    name: str
    message: str
    since: datetime
    """When it was raised first."""
    last_at: datetime
    """When it was raised last."""
    details: dict[str, Any]


class Overview(Struct, frozen=True, kw_only=True, rename="camel"):
    """The state of a tenant's deliveries right now."""

    now: datetime
    """Time of the store."""
    level: VerdictLevel
    verdict: str
    """What is wrong, in one sentence. Times are in UTC."""
    channels: tuple[ChannelNow, ...]
    """The channels that have a provider, or something to report."""
    live_workers: int
    dead_letters: int
    """Number of dead letters, also of acknowledged ones."""
    failed_last_hour: int
    """Number of new dead letters in the last hour."""
    unacknowledged: int
    """Number of dead letters that no operator has acknowledged. 100,000 means that many or more."""

    def of(self, channel: Channel) -> ChannelNow:
        """Returns the state of a channel that is in `channels`."""
        return next(one for one in self.channels if one.channel is channel)


def build_points(
    sums: Iterable[MinuteRollUp], *, now: datetime, step: timedelta, number: int, waits_ms: int | None = None
) -> tuple[OverviewPoint, ...]:
    """Returns the last `number` points of one channel. A step in which nothing happened has zeros.

    `waits_ms` tells for how long the oldest late notification has been due. With it, the points have the ages
    of the oldest ones.
    """
    last = datetime.fromtimestamp(now.timestamp() // step.total_seconds() * step.total_seconds(), UTC)
    steps: dict[datetime, list[MinuteRollUp]] = {last - step * back: [] for back in reversed(range(number))}
    for one in sums:
        if one.minute_at in steps:
            steps[one.minute_at].append(one)
    ages = {} if waits_ms is None else _oldest_ms(steps, now, step, waits_ms)
    return tuple(
        OverviewPoint(
            at=at,
            accepted=sum(one.accepted for one in found),
            attempts=sum(one.attempts for one in found),
            sent=sum(one.sent for one in found),
            failed=sum(one.failed for one in found),
            retried=sum(one.retried for one in found),
            p99_late_ms=lateness_ms(found),
            oldest_ms=ages.get(at),
        )
        for at, found in steps.items()
    )


def _oldest_ms(
    steps: Mapping[datetime, Sequence[MinuteRollUp]], now: datetime, step: timedelta, waits_ms: int
) -> dict[datetime, int]:
    """Returns the age of the oldest late notification in each step, from the newest step to the oldest.

    What was sent late in a step, or is late now, was also late in the steps before, and younger by a step.
    """
    ages: dict[datetime, int] = {}
    until, age_ms = now, waits_ms
    for at, found in reversed([*steps.items()]):
        age_ms = max(age_ms, lateness_ms(found, 1.0) or 0)
        ages[at] = age_ms
        age_ms = max(0, age_ms - (until - at) // timedelta(milliseconds=1))
        until = at
    return ages


def lateness_ms(sums: Sequence[MinuteRollUp], share: float = 0.99) -> int | None:
    """Returns how late this share of what was sent was at most, or None if nothing was sent."""
    if not sums:
        return None
    return lateness_quantile(
        [sum(numbers) for numbers in zip(*(s.lateness for s in sums), strict=True)], share
    )


def build_channel(
    channel: Channel,
    *,
    now: datetime,
    minutes: Sequence[MinuteRollUp],
    quarters: Sequence[MinuteRollUp],
    waiting: Sequence[WaitingGroup],
    complete: bool,
    troubles: Sequence[TroubledProvider],
    split: SplitOverrideView | None = None,
) -> ChannelNow:
    """Builds the state of one channel from its sums of the last hour and day, and from what waits.

    The groups of what waits must be split by due time: those without a step are due already.
    """
    recent = [one for one in minutes if one.minute_at > now - RECENT - MINUTE]
    sent, failed = sum(one.sent for one in minutes), sum(one.failed for one in minutes)
    late = [one for one in waiting if one.oldest_at is not None and one.reason not in _ON_PURPOSE]
    since = [one.oldest_at for one in late if one.oldest_at is not None and one.oldest_at <= now]
    per_minute = round(sum(one.sent for one in recent) / (RECENT / MINUTE), 1)
    due = sum(one.count for one in waiting if one.due_from is None and one.reason not in _ON_PURPOSE)
    waits_ms = (now - min(since, default=now)) // timedelta(milliseconds=1)
    return ChannelNow(
        channel=channel,
        per_minute=per_minute,
        success_rate=round(_PER_CENT * sent / (sent + failed), 2) if sent + failed else None,
        p99_late_ms=lateness_ms(recent),
        waiting=sum(one.count for one in waiting),
        late=sum(one.late for one in late),
        oldest_at=min(since, default=None),
        complete=complete,
        works=due <= per_minute
        and not any(one.phase is not Phase.CLOSED and one.failed_over_to is None for one in troubles)
        and _mostly_succeeds(recent if any(one.attempts for one in recent) else minutes),
        troubles=tuple(troubles),
        split=split,
        last_hour=build_points(minutes, now=now, step=MINUTE, number=60, waits_ms=waits_ms),
        last_day=build_points(quarters, now=now, step=15 * MINUTE, number=96, waits_ms=waits_ms),
    )


def _mostly_succeeds(minutes: Sequence[MinuteRollUp]) -> bool:
    """Returns True if at least half of the attempts succeeded, and most of what was sent was in time."""
    sent, retried = sum(one.sent for one in minutes), sum(one.retried for one in minutes)
    return sent > 0 and sent >= retried and (lateness_ms(minutes, 0.5) or 0) <= LATE_AFTER_MS


def give_verdict(
    now: datetime,
    channels: Sequence[ChannelNow],
    *,
    live_workers: int,
    failed_last_hour: int,
    unacknowledged: int | None = None,
    zone: tzinfo = UTC,
) -> tuple[VerdictLevel, str]:
    """Returns how bad the state is, and what is wrong in one sentence. The worst comes first.

    Dead letters need attention until all are acknowledged. Times of day are in this time zone.
    """
    late = sorted(
        (one for one in channels if one.late_ms(now) > LATE_AFTER_MS and not (one.works and live_workers)),
        key=lambda one: one.late_ms(now),
        reverse=True,
    )
    behind = sum(one.late for one in late)
    if not live_workers and behind:
        oldest_ms = max(one.waits_ms(now) for one in late)
        return (
            VerdictLevel.PROBLEM,
            f"No worker is live: {behind:,} waiting, oldest {_spoken(oldest_ms)}",
        )
    parts = [
        f"{name_of(one.channel)} is {_spoken(one.late_ms(now))} late{_causes(one, now, zone)}" for one in late
    ]
    parts += [
        f"{name_of(one.channel)} has no working provider{_causes(one, now, zone)}"
        for one in sorted(channels, key=lambda one: -one.late)
        if one.has_no_provider(now) and one.is_used and one not in late
    ]
    level = VerdictLevel.PROBLEM if parts else VerdictLevel.WARNING
    parts = parts or [
        *_troubles_in_time(channels, now, zone),
        *(_retries(one, now) for one in channels if one.has_retries(now, least=_FEW)),
    ]
    one = failed_last_hour == 1
    failed = f"{failed_last_hour:,} dead letter{'' if one else 's'} in the last hour"
    if failed_last_hour and unacknowledged != 0:
        parts.append(failed)
    if parts:
        text = "; ".join(parts)
        return level, text[0].upper() + text[1:]
    if not live_workers:
        if due := sum(one.late for one in channels):
            oldest_ms = max(one.waits_ms(now) for one in channels)
            return VerdictLevel.WARNING, f"No worker is live: {due:,} waiting, oldest {_spoken(oldest_ms)}"
        return VerdictLevel.WARNING, "No worker is live, and nothing is due"
    sent = sum(point.sent for one in channels for point in one.last_hour)
    retries = [_retries(one, now) for one in channels if one.has_retries(now)]
    rest = f"; {'; '.join(retries)}" if retries else ", and nothing is late"
    if failed_last_hour:
        rest += f"; {failed} {'is' if one else 'are'} acknowledged"
    return VerdictLevel.OK, f"All is well: {sent:,} sent in the last hour{rest}"


def _retries(one: ChannelNow, now: datetime) -> str:
    more = "" if one.complete else "more than "
    name = _NAMES.get(one.channel, one.channel.value)
    return f"{name} has {more}{one.late:,} waiting for a retry, oldest {_spoken(one.waits_ms(now))}"


def name_of(channel: Channel) -> str:
    """Returns the name of a channel at the start of a sentence."""
    return _NAMES.get(channel, channel.value.capitalize())


def _troubles_in_time(channels: Sequence[ChannelNow], now: datetime, zone: tzinfo) -> list[str]:
    """Describes the troubled providers of channels in time, once for channels with the same troubles."""
    affected: dict[str, list[Channel]] = {}
    for one in channels:
        if one.troubles and one.is_used:
            causes = ", ".join(_describe(trouble, now, zone) for trouble in one.troubles)
            affected.setdefault(causes, []).append(one.channel)
    return [f"{_subject(names)} delivered in time: {causes}" for causes, names in affected.items()]


def _subject(channels: Sequence[Channel]) -> str:
    """Returns channels as the subject of a sentence: `SMS is`, `SMS and email are`."""
    first, *others = name_of(channels[0]), *(_NAMES.get(one, one.value) for one in channels[1:])
    if not others:
        return f"{first} is"
    return f"{', '.join([first, *others[:-1]])} and {others[-1]} are"


def _causes(one: ChannelNow, now: datetime, zone: tzinfo) -> str:
    causes = [_describe(trouble, now, zone) for trouble in one.troubles]
    if one.late:
        assert one.oldest_at is not None, "what is late has a time"
        age_ms = one.waits_ms(now)
        more = "" if one.complete else "more than "
        causes.append(f"{more}{one.late:,} waiting, oldest {_spoken(age_ms)}")
    return f": {', '.join(causes)}" if causes else ""


def _describe(trouble: TroubledProvider, now: datetime, zone: tzinfo) -> str:
    phase = trouble.phase.value.replace("_", "-")
    text = f"{trouble.provider} {'forced ' if trouble.forced else ''}{phase}"
    if trouble.since is not None:
        text += f" since {time_of_day(trouble.since, now, zone)}"
    if trouble.phase is not Phase.CLOSED and trouble.failed_over_to is not None:
        text += f", failed over to {trouble.failed_over_to}"
    return text


def time_of_day(at: datetime, now: datetime, zone: tzinfo = UTC) -> str:
    """Returns a time as the verdict writes it, with its date unless that is today."""
    at = at.astimezone(zone)
    return f"{at:%H:%M}" if at.date() == now.astimezone(zone).date() else f"{at:%Y-%m-%d %H:%M}"


def _spoken(ms: int) -> str:
    """Returns a duration in whole seconds, or in whole minutes if it is a minute or longer."""
    step = 60_000 if ms >= 60_000 else 1_000
    return format_duration(max(1_000, ms // step * step), spaced=True)
