"""Rehearsals: a simulation run that shows the effect of an outage under a retry policy.

This module has the inputs and the report, shared by the command line, the API and the simulator.
The package `homing.rehearsal` runs the simulation.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct, field

from homing.core.errors import ConfigError
from homing.core.notifications import Channel, Priority
from homing.core.retry.policy import RetryPolicy, Rule
from homing.core.routing.breaker import BreakerPolicy

PROVIDERS = ("primary", "secondary")
"""The providers of a rehearsal, in route order."""

MAX_NOTIFICATIONS = 50_000

_WEEK_MS = 7 * 24 * 3_600_000
_From0 = Annotated[int, Meta(ge=0, le=_WEEK_MS)]
_From1 = Annotated[int, Meta(ge=1, le=_WEEK_MS)]
_Provider = Annotated[str, Meta(pattern="^(primary|secondary)$")]
_Shares = Annotated[
    Mapping[Priority, Annotated[float, Meta(ge=0, le=1_000_000)]],
    Meta(extra_json_schema={"propertyNames": {"enum": [priority.value for priority in Priority]}}),
]
_Tenant = Annotated[str, Meta(min_length=1, max_length=100, pattern="^[^\\x00-\\x1f\\x7f]+$")]
_Type = Annotated[str, Meta(min_length=1, max_length=100, pattern="^[A-Za-z0-9_.:/-]+$")]
_Origin = Annotated[str, Meta(max_length=100, pattern="^[A-Za-z0-9_.:/-]*$")]


class OutageKind(StrEnum):
    """How a provider fails during an outage."""

    DOWN = "down"
    """Every affected call fails at once with a transient error."""
    THROTTLE = "throttle"
    """Every affected call is rejected with a `Retry-After`."""
    SLOW = "slow"
    """Every affected call takes `latency_ms`, possibly so long that the attempt times out."""


class Outage(Struct, frozen=True, kw_only=True, rename="camel"):
    """An outage of one or both providers. Times count from the start of the rehearsal."""

    providers: Annotated[tuple[_Provider, ...], Meta(min_length=1, max_length=2)] = ("primary",)
    """Affected providers: `primary`, `secondary` or both."""
    start_ms: _From0 = 60_000
    duration_ms: _From1 = 600_000
    kind: OutageKind = OutageKind.DOWN
    share: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Fraction of the sends that the outage affects. 1 means all sends."""
    retry_after_ms: _From0 = 30_000
    """For `throttle`: the wait that the provider asks for."""
    latency_ms: _From0 = 60_000
    """For `slow`: the time that an answer takes."""

    @property
    def end_ms(self) -> int:
        """End of the outage."""
        return self.start_ms + self.duration_ms


class Traffic(Struct, frozen=True, kw_only=True, rename="camel"):
    """The notifications that are sent, at random times, on average `per_second`."""

    per_second: Annotated[float, Meta(gt=0, le=10_000)] = 5.0
    duration_ms: _From1 = 1_200_000
    channel: Channel = Channel.EMAIL
    priorities: _Shares = field(
        default_factory=lambda: {
            Priority.CRITICAL: 0.05,
            Priority.HIGH: 0.15,
            Priority.MEDIUM: 0.6,
            Priority.LOW: 0.2,
        }
    )
    """Priority → share of the traffic. The shares need not add up to 1."""
    tenant: _Tenant = "default"
    type: _Type = "message"
    origin: _Origin = ""
    """Origin of the notifications. Like tenant and type, it matters only if rules match on it."""


class Rehearsal(Struct, frozen=True, kw_only=True, rename="camel"):
    """All inputs of a rehearsal. The same inputs give the same report."""

    preset: str = "priority"
    rules: tuple[Rule, ...] = ()
    policy: RetryPolicy | None = None
    """Policy for all notifications. If it is set, `rules` must be empty. If None, preset and rules apply."""
    traffic: Traffic = Traffic()
    outages: tuple[Outage, ...] = (Outage(),)
    providers: int = 1
    """Number of providers: 1 for `primary` alone, 2 for `primary` followed by `secondary`."""
    latency_ms: int = 200
    """Average response time of a working provider."""
    rate_per_second: float | None = None
    """Rate limit of each provider, in sends per second. None if there is no limit."""
    max_in_flight: int = 128
    """Maximum number of sends in flight per provider."""
    breaker: BreakerPolicy | None = None
    """Breaker policy. If None, the default of the channel applies."""
    notifications: int = MAX_NOTIFICATIONS
    """Maximum number of notifications, whatever the traffic."""
    seed: int = 1

    def __post_init__(self) -> None:
        for name, problem in _problems(self):
            raise ConfigError(name, problem)

    @property
    def provider_names(self) -> tuple[str, ...]:
        """Names of the providers that take part."""
        return PROVIDERS[: self.providers]


class Percentiles(Struct, frozen=True, kw_only=True, rename="camel"):
    """Delivery times in milliseconds, from acceptance until a provider accepted the message."""

    p50: int
    p90: int
    p95: int
    p99: int
    max: int


class Ending(Struct, frozen=True, kw_only=True, rename="camel"):
    """Number of notifications that ended with this status and reason."""

    status: str
    reason: str | None
    count: int


class TimeBucket(Struct, frozen=True, kw_only=True, rename="camel"):
    """One interval of the timeline, `RehearsalReport.bucket_ms` long."""

    start_ms: int
    sends_per_second: Mapping[str, float]
    """Provider → attempts per second, whatever their outcome."""
    backlog: int
    """Number of notifications accepted and not yet ended, at the end of the interval."""


class BreakerChange(Struct, frozen=True, kw_only=True, rename="camel"):
    """A breaker's change from one phase to another."""

    at_ms: int
    provider: str
    before: str
    after: str


class RecoveryPeak(Struct, frozen=True, kw_only=True, rename="camel"):
    """Highest load on a provider after its outage, measured over ten seconds."""

    provider: str
    outage_end_ms: int
    per_second: float
    at_ms: int
    times_normal: float
    """Ratio of this load to the load before the outage or, if that was 0, to the average traffic."""


class RehearsalReport(Struct, frozen=True, kw_only=True, rename="camel"):
    """Result of a rehearsal. Times count from the start of the rehearsal."""

    policy: str
    """Description of the policy: the preset and the changes to it."""
    traffic: Traffic
    outages: tuple[Outage, ...]
    providers: tuple[str, ...]
    seed: int
    notifications: int
    delivered: int
    dead_letters: int
    unfinished: int
    """Number of notifications in doubt, or still waiting when the rehearsal was stopped."""
    attempts: int
    attempts_per_delivered: float
    """Number of all attempts, including those of dead letters, divided by the number delivered."""
    delivery: Percentiles | None
    """Delivery times. None if nothing was delivered."""
    endings: tuple[Ending, ...]
    """Number of notifications by status and reason, largest first."""
    bucket_ms: int
    buckets: tuple[TimeBucket, ...]
    """Timeline, which covers the traffic, the outages and nearly all sends."""
    sends_after: int
    """Number of sends after the last bucket, which are late retries."""
    largest_backlog: int
    recovery_peaks: tuple[RecoveryPeak, ...]
    """One peak per outage and affected provider."""
    breaker_changes: tuple[BreakerChange, ...]
    ended_ms: int
    """Time at which the last notification ended."""


def _problems(r: Rehearsal) -> list[tuple[str, str]]:
    t = r.traffic
    checks = [
        (1 <= r.providers <= 2, "providers", f"is {r.providers}; it must be 1 or 2"),
        (t.per_second > 0, "traffic.per_second", f"is {t.per_second}; it must be above 0"),
        (t.duration_ms > 0, "traffic.duration_ms", f"is {t.duration_ms}; it must be above 0"),
        (r.latency_ms >= 0, "latency_ms", f"is {r.latency_ms}; it cannot be negative"),
        (r.max_in_flight >= 1, "max_in_flight", f"is {r.max_in_flight}; it must be at least 1"),
        (
            1 <= r.notifications <= MAX_NOTIFICATIONS,
            "notifications",
            f"is {r.notifications}; it must be from 1 to {MAX_NOTIFICATIONS}",
        ),
        (
            bool(t.priorities)
            and all(share >= 0 for share in t.priorities.values())
            and sum(t.priorities.values()) > 0,
            "traffic.priorities",
            "must have at least one share above 0 and no negative one",
        ),
        (
            r.policy is None or not r.rules,
            "rules",
            "and policy are both given; set only one of them",
        ),
    ]
    for index, outage in enumerate(r.outages):
        where = f"outages[{index}]"
        known = ", ".join(PROVIDERS[: max(1, r.providers)])
        checks += [
            (
                bool(outage.providers) and all(p in PROVIDERS[: r.providers] for p in outage.providers),
                f"{where}.providers",
                f"are {', '.join(outage.providers) or 'none'}; they must be among {known}",
            ),
            (outage.start_ms >= 0, f"{where}.start_ms", f"is {outage.start_ms}; it cannot be negative"),
            (outage.duration_ms > 0, f"{where}.duration_ms", f"is {outage.duration_ms}; it must be above 0"),
            (0 < outage.share <= 1, f"{where}.share", f"is {outage.share}; it must be above 0 and at most 1"),
            (outage.latency_ms >= 0, f"{where}.latency_ms", f"is {outage.latency_ms}; it cannot be negative"),
            (
                outage.retry_after_ms >= 0,
                f"{where}.retry_after_ms",
                f"is {outage.retry_after_ms}; it cannot be negative",
            ),
        ]
    return [(name, problem) for ok, name, problem in checks if not ok]
