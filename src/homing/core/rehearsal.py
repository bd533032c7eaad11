"""What would happen if: a policy, an outage and traffic in; delivery times and dead letters out.

These are the question and the answer, as the command line, the API and the simulator share them;
`sim.rehearsal` finds the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct, field

from homing.core.breaker import BreakerPolicy
from homing.core.errors import ConfigError
from homing.core.model import Channel, Priority
from homing.core.policy import RetryPolicy, Rule

PROVIDERS = ("primary", "secondary")
"""The providers of a rehearsal, in the order of the route."""

MOST_NOTIFICATIONS = 50_000

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
    """What is wrong with a provider."""

    DOWN = "down"
    """Every call fails at once; trying again may help."""
    THROTTLE = "throttle"
    """Refuses with a `Retry-After`."""
    SLOW = "slow"
    """Answers too late, or so late that the attempt times out."""


class Outage(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """When which providers do not work, and how. Times count from the beginning of the rehearsal."""

    providers: Annotated[tuple[_Provider, ...], Meta(min_length=1, max_length=2)] = ("primary",)
    """Of `primary` and `secondary`."""
    start_ms: _From0 = 60_000
    duration_ms: _From1 = 600_000
    kind: OutageKind = OutageKind.DOWN
    share: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """How much of the sends it hits: 1 is all of them."""
    retry_after_ms: _From0 = 30_000
    """For `throttle`: what the provider asks for."""
    latency_ms: _From0 = 60_000
    """For `slow`: how long an answer takes."""

    @property
    def end_ms(self) -> int:
        return self.start_ms + self.duration_ms


class Traffic(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What is sent: at random moments, `per_second` on average."""

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
    """Priority → share of the traffic; the shares need not add up to 1."""
    tenant: _Tenant = "default"
    type: _Type = "message"
    origin: _Origin = ""
    """Tenant, type and origin matter where a rule matches on them."""


class Rehearsal(Struct, frozen=True, kw_only=True, rename="camel"):
    """Everything that a rehearsal depends on. The same one gives the same report."""

    preset: str = "priority"
    rules: tuple[Rule, ...] = ()
    policy: RetryPolicy | None = None
    """If given, it holds for everything, and `rules` must be empty."""
    traffic: Traffic = Traffic()
    outages: tuple[Outage, ...] = (Outage(),)
    providers: int = 1
    """1: `primary` alone; 2: `primary` and, after it, `secondary`."""
    latency_ms: int = 200
    """How long a provider that works takes, on average."""
    rate_per_second: float | None = None
    """The rate limit of each provider, if it has one."""
    max_in_flight: int = 128
    """Sends under way at one provider."""
    breaker: BreakerPolicy | None = None
    """None: as usual for the channel."""
    notifications: int = MOST_NOTIFICATIONS
    """No more than this many are sent, whatever the traffic says."""
    seed: int = 1

    def __post_init__(self) -> None:
        for name, problem in _problems(self):
            raise ConfigError(name, problem)

    @property
    def provider_names(self) -> tuple[str, ...]:
        return PROVIDERS[: self.providers]


class Percentiles(Struct, frozen=True, kw_only=True, rename="camel"):
    """From acceptance until a provider took it, in milliseconds; over what was delivered."""

    p50: int
    p90: int
    p95: int
    p99: int
    max: int


class Ending(Struct, frozen=True, kw_only=True, rename="camel"):
    """How many ended with this status, for this reason."""

    status: str
    reason: str | None
    count: int


class Bucket(Struct, frozen=True, kw_only=True, rename="camel"):
    """A stretch of time, `RehearsalReport.bucket_ms` long."""

    start_ms: int
    sends_per_second: Mapping[str, float]
    """Provider → attempts that it got; their answers do not matter here."""
    backlog: int
    """Accepted and not yet ended, at the end of the stretch."""


class BreakerChange(Struct, frozen=True, kw_only=True, rename="camel"):
    """A breaker went from one phase to another."""

    at_ms: int
    provider: str
    before: str
    after: str


class RecoveryPeak(Struct, frozen=True, kw_only=True, rename="camel"):
    """What a provider had to bear when its outage was over: the busiest ten seconds."""

    provider: str
    outage_end_ms: int
    per_second: float
    at_ms: int
    times_normal: float
    """Against what it got before its outage; where that was nothing, against the traffic."""


class RehearsalReport(Struct, frozen=True, kw_only=True, rename="camel"):
    """The answer. Times count from the beginning of the rehearsal."""

    policy: str
    """In words: the preset, and what was changed about it."""
    traffic: Traffic
    outages: tuple[Outage, ...]
    providers: tuple[str, ...]
    seed: int
    notifications: int
    delivered: int
    dead_letters: int
    unfinished: int
    """In doubt, or still waiting when the rehearsal was broken off."""
    attempts: int
    attempts_per_delivered: float
    """All attempts, those of dead letters too, by what was delivered."""
    delivery: Percentiles | None
    """None: nothing was delivered."""
    endings: tuple[Ending, ...]
    """By status and reason, most first."""
    bucket_ms: int
    buckets: tuple[Bucket, ...]
    """While there was traffic or an outage, and until nearly all sends were made."""
    sends_after: int
    """The few sends after the last bucket: retries of what waits for hours."""
    largest_backlog: int
    recovery_peaks: tuple[RecoveryPeak, ...]
    """One for each outage and provider that it hit."""
    breaker_changes: tuple[BreakerChange, ...]
    ended_ms: int
    """When the last notification had ended."""


def _problems(r: Rehearsal) -> list[tuple[str, str]]:
    t = r.traffic
    checks = [
        (1 <= r.providers <= 2, "providers", f"is {r.providers}; allowed are 1 and 2"),
        (t.per_second > 0, "traffic.per_second", f"is {t.per_second}; it must be above 0"),
        (t.duration_ms > 0, "traffic.duration_ms", f"is {t.duration_ms}; it must be above 0"),
        (r.latency_ms >= 0, "latency_ms", f"is {r.latency_ms}; it cannot be negative"),
        (r.max_in_flight >= 1, "max_in_flight", f"is {r.max_in_flight}; it must be at least 1"),
        (
            1 <= r.notifications <= MOST_NOTIFICATIONS,
            "notifications",
            f"is {r.notifications}; allowed are 1 to {MOST_NOTIFICATIONS}",
        ),
        (
            bool(t.priorities)
            and all(share >= 0 for share in t.priorities.values())
            and sum(t.priorities.values()) > 0,
            "traffic.priorities",
            "must have at least one share above 0 and none below",
        ),
        (
            r.policy is None or not r.rules,
            "rules",
            "and policy are both given; one policy for everything leaves rules nothing to choose",
        ),
    ]
    for index, outage in enumerate(r.outages):
        where = f"outages[{index}]"
        known = ", ".join(PROVIDERS[: max(1, r.providers)])
        checks += [
            (
                bool(outage.providers) and all(p in PROVIDERS[: r.providers] for p in outage.providers),
                f"{where}.providers",
                f"are {', '.join(outage.providers) or 'none'}; allowed are {known}",
            ),
            (outage.start_ms >= 0, f"{where}.start_ms", f"is {outage.start_ms}; it cannot be negative"),
            (outage.duration_ms > 0, f"{where}.duration_ms", f"is {outage.duration_ms}; must be above 0"),
            (0 < outage.share <= 1, f"{where}.share", f"is {outage.share}; allowed are above 0 up to 1"),
            (outage.latency_ms >= 0, f"{where}.latency_ms", f"is {outage.latency_ms}; cannot be negative"),
            (outage.retry_after_ms >= 0, f"{where}.retry_after_ms", "cannot be negative"),
        ]
    return [(name, problem) for ok, name, problem in checks if not ok]
