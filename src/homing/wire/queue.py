"""Requests and answers about the queue, its statistics and retry delays."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from homing.core.notifications import Channel, Priority
from homing.wire.common import DelayMs, Limit, Text

_HOUR_MS = 3_600_000


class PendingQuery(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, rename="camel"
):
    """Hypothetical retry settings to compute with. Nothing is changed."""

    limit: Limit = 50
    max_attempts: Annotated[int, Meta(ge=1, le=1000)] | None = None
    """Maximum number of attempts. If omitted, that of each notification's policy is used."""
    delay_ms: DelayMs | None = None
    """Delay after the first attempt, in milliseconds. It doubles with each further attempt.

    If omitted, the delays of each notification's policy are used.
    """


class WaitingQuery(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, rename="camel"
):
    """Order of the list, and a hypothetical retry delay to compute with. Nothing is changed."""

    limit: Limit = 50
    by: Literal["due", "last-attempt"] = "due"
    """`due` lists what is not due yet, soonest first. `last-attempt` lists all that wait for a retry, those
    that were attempted longest ago first.
    """
    delay_ms: DelayMs | None = None
    """Delay after the first attempt, in milliseconds. It doubles with each further attempt.

    If omitted, the delays of each notification's policy are used.
    """


class ErrorsQuery(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, rename="camel"
):
    """Selects what is grouped, and limits the number of groups."""

    limit: Limit = 50
    status: Literal["failed", "retrying"] = "failed"
    """`failed` groups dead letters, `retrying` groups what waits for a retry, by its last error."""


class HistogramQuery(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, rename="camel"
):
    """Steps and length of the histogram."""

    step_ms: Annotated[int, Meta(ge=60_000, le=24 * _HOUR_MS)] = 15 * 60_000
    """Length of one step, in milliseconds."""
    span_ms: Annotated[int, Meta(ge=60_000, le=31 * 24 * _HOUR_MS)] = 24 * _HOUR_MS
    """Length of the histogram from now on, in milliseconds. What is due later is counted at its end."""


class RollUpsQuery(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, rename="camel"
):
    """Time range of the hourly totals."""

    since_ms: Annotated[int, Meta(ge=0, le=366 * 24 * _HOUR_MS)] = 24 * _HOUR_MS
    """Length of the time range that ends now, in milliseconds."""


class DelayQuery(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, rename="camel"
):
    """An attempt and its retry settings: a base delay, or the properties that select a policy."""

    attempt: Annotated[int, Meta(ge=-1000, le=1000, examples=[2])]
    """Number of the failed attempt, counted from 1. For 0 and less, the delay is 0."""
    delay_ms: DelayMs | None = None
    """Delay after the first attempt, in milliseconds. It doubles with each further attempt.

    If omitted, the policy that matches the other fields is used.
    """
    type: Text = "message"
    """Type of the notification."""
    origin: Annotated[str, Meta(max_length=100)] = ""
    """Origin of the notification."""
    channel: Channel = Channel.EMAIL
    """Channel of the notification."""
    priority: Annotated[str, Meta(pattern=f"^({'|'.join(Priority)}|normal)$")] = "medium"
    """Priority of the notification. `normal` is another name for `medium`."""
    jitter: bool = False
    """Whether to add the policy's jitter, which differs with each call."""


class RetryDelay(Struct, frozen=True, kw_only=True, rename="camel"):
    """Delay after an attempt."""

    attempt: int
    """Number of the failed attempt."""
    delay_ms: int
    """Delay in milliseconds."""
    delay_minutes: float
    """The same delay in minutes."""
    should_retry: bool
    """True if the policy allows another attempt after this one has failed."""


class SinkRetryResponse(Struct, frozen=True, kw_only=True, rename="camel"):
    """Parked events that wait to be published again."""

    name: str
    released_events: int
