"""Every metric that there is: its name, its labels and what it says. The reference page is this table."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct


class Metric(Struct, frozen=True):
    """One family of the page, by the name that a query uses."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()


_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_LONG: Final = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)

RETRIES_SCHEDULED = Metric(
    "retries_scheduled_total", "counter", ("queue",), "Attempts that failed and will be repeated"
)
RETRIES_EXECUTED = Metric(
    "retries_executed_total",
    "counter",
    ("queue", "status"),
    "Second and later attempts that were made: success (a provider took it) or failed",
)
RETRIES_EXHAUSTED = Metric(
    "retries_exhausted_total", "counter", ("queue",), "Notifications that became dead letters: retries spent"
)
RETRY_QUEUE_DEPTH = Metric("retry_queue_depth", "gauge", (), "Notifications that wait for a retry")

ACCEPTED = Metric(
    "homing_accepted_total", "counter", ("lane", "tenant"), "Notifications accepted through this process"
)
DUPLICATES = Metric(
    "homing_duplicates_total",
    "counter",
    ("lane", "tenant"),
    "Notifications not stored again: known by idempotency key or dedup window",
)
CONFLICTS = Metric(
    "homing_conflicts_total",
    "counter",
    ("tenant",),
    "Requests refused: their idempotency key was used with another body",
)
ATTEMPTS = Metric(
    "homing_attempts_total", "counter", ("lane", "provider", "outcome"), "Attempts that were settled"
)
SETTLED = Metric(
    "homing_settled_total",
    "counter",
    ("lane", "tenant", "status"),
    "Claims by what became of them; pending and retrying ones wait again",
)
STALE = Metric(
    "homing_stale_settlements_total",
    "counter",
    (),
    "Settlements refused because another worker had taken the lease over",
)
ATTEMPT_SECONDS = Metric(
    "homing_attempt_seconds", "histogram", ("channel", "provider"), "How long providers took to answer",
    _SECONDS,
)  # fmt: skip
DELIVERY_SECONDS = Metric(
    "homing_delivery_seconds",
    "histogram",
    ("lane",),
    "From acceptance (or its sendAt, an operator's retry, a bounce) until a provider took it",
    _LONG,
)
LATENESS = Metric(
    "homing_schedule_lateness_seconds", "histogram", ("lane",), "How long after they were due attempts began",
    _SECONDS,
)  # fmt: skip
RECEIPTS = Metric(
    "homing_receipts_total",
    "counter",
    ("provider", "event", "fate"),
    "What providers told later: applied, unchanged (nothing new) or orphaned (of a message not known yet)",
)
BREAKER = Metric(
    "homing_breaker_state",
    "gauge",
    ("provider", "phase"),
    "1 for the phase that the provider's breaker is in",
)
BREAKER_CHANGES = Metric(
    "homing_breaker_changes_total", "counter", ("provider", "phase"), "Changes of breakers by this process"
)
STORE_ERRORS = Metric(
    "homing_store_errors_total", "counter", ("call", "code"), "Calls of the store that failed, by error code"
)
REQUESTS = Metric(
    "homing_http_requests_total",
    "counter",
    ("operation", "status"),
    "Requests that the service answered, by operationId (none: no such address) and class of status, as 2xx",
)
REQUEST_SECONDS = Metric(
    "homing_http_request_seconds",
    "histogram",
    ("operation",),
    "How long the service took to answer, from the end of the request's head on",
    _SECONDS,
)
IN_FLIGHT = Metric("homing_in_flight", "gauge", ("lane", "provider"), "Attempts under way in this process")
SETTLE_BACKLOG = Metric(
    "homing_settle_backlog", "gauge", (), "Outcomes of this process that wait for the store"
)
NOTIFICATIONS = Metric(
    "homing_notifications", "gauge", ("status",), "Notifications in the store, all tenants, purged ones not"
)
OLDEST_RETRY = Metric(
    "homing_oldest_retry_seconds", "gauge", (), "Since the last attempt of the longest-waiting retry; 0: none"
)
STORE_UP = Metric(
    "homing_store_up", "gauge", (), "1 if the store answered when it was last asked for the counts"
)
WORKING = Metric("homing_worker_up", "gauge", (), "1 while this process's worker runs")
BUILD = Metric("homing_build_info", "gauge", ("version",), "1, with the version of Homing")

CATALOGUE: Final = (
    *(RETRIES_SCHEDULED, RETRIES_EXECUTED, RETRIES_EXHAUSTED, RETRY_QUEUE_DEPTH),
    *(ACCEPTED, DUPLICATES, CONFLICTS, ATTEMPTS, SETTLED, STALE),
    *(ATTEMPT_SECONDS, DELIVERY_SECONDS, LATENESS),
    *(RECEIPTS, BREAKER, BREAKER_CHANGES, STORE_ERRORS),
    *(REQUESTS, REQUEST_SECONDS),
    *(IN_FLIGHT, SETTLE_BACKLOG, NOTIFICATIONS, OLDEST_RETRY, STORE_UP, WORKING, BUILD),
)
