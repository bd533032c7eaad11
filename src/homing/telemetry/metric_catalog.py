"""All metrics with their names, labels and descriptions, and classes that limit the number of label values.

The reference page is generated from this catalog.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Literal

from msgspec import Struct


class Metric(Struct, frozen=True):
    """One metric, with the name that queries use."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()


# The latency goals of the delivery modes, 2 s, 5 s, 30 s and 5 min, are bounds of buckets.
_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 2.5, 5.0, 10.0, 30.0)

_LATENESS: Final = (*_SECONDS, 300.0)

_LONG: Final = (0.1, 0.5, 1.0, 2.0, 5.0, 15.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)


RETRIES_SCHEDULED = Metric(
    "retries_scheduled_total",
    "counter",
    ("queue",),
    "Failed attempts that will be retried, and tasks that a bridge has taken over",
)

RETRIES_EXECUTED = Metric(
    "retries_executed_total",
    "counter",
    ("queue", "status"),
    "Second and later attempts: success (accepted by a provider) or failed",
)

RETRIES_EXHAUSTED = Metric(
    "retries_exhausted_total",
    "counter",
    ("queue",),
    "Dead letters whose retries were exhausted, and all dead letters among the tasks of a bridge",
)

RETRY_QUEUE_DEPTH = Metric("retry_queue_depth", "gauge", (), "Notifications that are waiting for a retry")


ACCEPTED = Metric(
    "homing_accepted_total", "counter", ("lane", "tenant"), "Notifications accepted through this process"
)

DUPLICATES = Metric(
    "homing_duplicates_total",
    "counter",
    ("lane", "tenant"),
    "Notifications not stored again, because of their idempotency key or dedup window",
)

CONFLICTS = Metric(
    "homing_conflicts_total",
    "counter",
    ("tenant",),
    "Requests rejected, because their idempotency key was used with a different body",
)

ATTEMPTS = Metric("homing_attempts_total", "counter", ("lane", "provider", "outcome"), "Settled attempts")

MOVES = Metric(
    "homing_moves_total",
    "counter",
    ("provider", "to", "cause"),
    "Failovers from a provider to another; the cause is the outcome of an attempt, unavailable or receipt",
)

SETTLED = Metric(
    "homing_settled_total",
    "counter",
    ("lane", "tenant", "status"),
    "Settled claims by new status; pending and retrying notifications wait again",
)

STALE = Metric(
    "homing_stale_settlements_total",
    "counter",
    (),
    "Settlements rejected, because another worker had taken over the lease",
)

ATTEMPT_SECONDS = Metric(
    "homing_attempt_seconds", "histogram", ("channel", "provider"), "Response time of providers",
    _SECONDS,
)  # fmt: skip

DELIVERY_SECONDS = Metric(
    "homing_delivery_seconds",
    "histogram",
    ("lane",),
    "Time from acceptance (or sendAt, an operator's retry, a bounce) until a provider accepted the message",
    _LONG,
)

LATENESS = Metric(
    "homing_schedule_lateness_seconds",
    "histogram",
    ("lane",),
    "Time from when attempts were due until they started",
    _LATENESS,
)

LATENCY_GOALS = Metric(
    "homing_latency_goal_total",
    "counter",
    ("mode", "result"),
    "Notifications sent within the latency goal of their delivery mode (met), or later (missed)",
)

RECEIPTS = Metric(
    "homing_receipts_total",
    "counter",
    ("provider", "event", "fate"),
    "Receipts by result: applied, unchanged (nothing new) or orphaned (for a message not known yet)",
)

UNREADABLE_EVENTS = Metric(
    "homing_unreadable_events_total",
    "counter",
    ("provider",),
    "Events in verified provider callbacks that could not be read; if none could, the callback gets 400",
)

BREAKER = Metric(
    "homing_breaker_state",
    "gauge",
    ("provider", "phase"),
    "1 for the current phase of the provider's breaker, 0 for the others",
)

BREAKER_CHANGES = Metric(
    "homing_breaker_changes_total", "counter", ("provider", "phase"), "Breaker changes made by this process"
)

PURGED = Metric(
    "homing_purged_total",
    "counter",
    ("kind",),
    "Records deleted at the end of their retention; `events` are events that a sink did not take in time",
)

STORE_ERRORS = Metric(
    "homing_store_errors_total", "counter", ("call", "code"), "Failed store calls by error code"
)

REQUESTS = Metric(
    "homing_http_requests_total",
    "counter",
    ("operation", "status"),
    "Requests by operationId (none: unknown path) and status class, such as 2xx",
)

REQUEST_SECONDS = Metric(
    "homing_http_request_seconds",
    "histogram",
    ("operation",),
    "Time to answer a request, measured from the end of its headers",
    _SECONDS,
)

IN_FLIGHT = Metric("homing_in_flight", "gauge", ("lane", "provider"), "Attempts in flight in this process")

ABANDONED_CALLS = Metric(
    "homing_abandoned_calls",
    "gauge",
    ("provider",),
    "Calls of this process that run on after the deadline of their attempt, and keep their slots",
)

SETTLE_BACKLOG = Metric(
    "homing_settle_backlog", "gauge", (), "Outcomes of this process that are not stored yet"
)

NOTIFICATIONS = Metric(
    "homing_notifications",
    "gauge",
    ("status",),
    "Notifications in the store, of all tenants, without purged ones",
)

OLDEST_RETRY = Metric(
    "homing_oldest_retry_seconds",
    "gauge",
    (),
    "Time since the first failure of the oldest waiting retry; 0 if none",
)

SINK_WAITING = Metric(
    "homing_sink_waiting", "gauge", ("sink",), "Events that wait to be published, in the whole store"
)

SINK_PARKED = Metric(
    "homing_sink_parked",
    "gauge",
    ("sink",),
    "Events that were set aside, because the sink refused them again and again",
)

SINK_LAG = Metric(
    "homing_sink_lag_seconds",
    "gauge",
    ("sink",),
    "Age of the oldest event that waits to be published; 0 if none",
)

SINK_PUBLISHED = Metric(
    "homing_sink_published_total", "counter", ("sink",), "Events that this process has published"
)

SINK_FAILURES = Metric(
    "homing_sink_failures_total",
    "counter",
    ("sink",),
    "Rounds in which a sink of this process did not take all events, or could not be opened",
)

TIMER_CONNECTED = Metric(
    "homing_timer_connected", "gauge", ("timer",), "1 if the last call of the timer in this process succeeded"
)

TIMER_SCHEDULED = Metric(
    "homing_timer_scheduled_total",
    "counter",
    ("timer",),
    "Due times that the timer has taken from this process",
)

TIMER_DISCARDED = Metric(
    "homing_timer_discarded_total",
    "counter",
    ("timer",),
    "Due times that the timer did not get, because it failed or was too slow; workers find them by polling",
)

TIMER_FAILURES = Metric(
    "homing_timer_failures_total", "counter", ("timer",), "Failed calls of the timer in this process"
)

BRIDGE_UP = Metric("homing_bridge_up", "gauge", ("bridge",), "1 while the bridge of this process consumes")

BRIDGE_MESSAGES = Metric(
    "homing_bridge_messages_total",
    "counter",
    ("bridge", "result"),
    "Messages that the bridge of this process has handled: accepted, duplicate or rejected",
)

BRIDGE_FAILURES = Metric(
    "homing_bridge_failures_total",
    "counter",
    ("bridge",),
    "Times that the bridge of this process failed and was opened again",
)

STORE_UP = Metric("homing_store_up", "gauge", (), "1 if the store answered the last query for counts")

WORKING = Metric("homing_worker_up", "gauge", (), "1 while the worker of this process runs")

BUILD = Metric(
    "homing_build_info",
    "gauge",
    ("version", "service"),
    "Always 1; the labels have the version of Homing and the name of the service",
)


COLLECTED: Final = (
    *(SINK_PUBLISHED, SINK_FAILURES, TIMER_SCHEDULED, TIMER_DISCARDED, TIMER_FAILURES),
    *(BRIDGE_MESSAGES, BRIDGE_FAILURES),
)
"""Counters that the engine keeps itself. They are read from it, like the gauges."""


CATALOGUE: Final = (
    *(RETRIES_SCHEDULED, RETRIES_EXECUTED, RETRIES_EXHAUSTED, RETRY_QUEUE_DEPTH),
    *(ACCEPTED, DUPLICATES, CONFLICTS, ATTEMPTS, MOVES, SETTLED, STALE),
    *(ATTEMPT_SECONDS, DELIVERY_SECONDS, LATENESS, LATENCY_GOALS),
    *(RECEIPTS, UNREADABLE_EVENTS, BREAKER, BREAKER_CHANGES, PURGED, STORE_ERRORS),
    *(REQUESTS, REQUEST_SECONDS),
    *(SINK_WAITING, SINK_PARKED, SINK_LAG, SINK_PUBLISHED, SINK_FAILURES),
    *(TIMER_CONNECTED, TIMER_SCHEDULED, TIMER_DISCARDED, TIMER_FAILURES),
    *(BRIDGE_UP, BRIDGE_MESSAGES, BRIDGE_FAILURES),
    *(IN_FLIGHT, ABANDONED_CALLS, SETTLE_BACKLOG, NOTIFICATIONS, OLDEST_RETRY, STORE_UP, WORKING, BUILD),
)


OTHER_LABEL = "other"
"""Label value for every name beyond the limit, because each label value costs Prometheus a time series."""


class FirstSeenLabels:
    """Keeps the first `most` names as they are. Every later name becomes `other`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._seen: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        found = self._seen.get(name)
        if found is not None:
            return found
        if len(self._seen) >= self._most:
            return OTHER_LABEL
        self._seen[name] = name
        return name


class FixedLabels:
    """Keeps names that are known in advance. Every other name becomes `other`."""

    def __init__(self, names: Collection[str] = ()) -> None:
        self._names = frozenset(names)

    def __getitem__(self, name: str) -> str:
        return name if name in self._names else OTHER_LABEL
