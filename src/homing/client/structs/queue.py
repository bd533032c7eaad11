"""What the service takes and answers with: queue.

Written by tools/make_client.py.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from msgspec import Struct

from homing.core.model import Channel, Priority

_T = TypeVar("_T")


class PendingQuery(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Other settings to compute with; they change nothing."""

    limit: int = 50
    max_attempts: int | None = None
    delay_ms: int | None = None
    """The base delay, doubling with each attempt."""


class Items(Struct, Generic[_T], frozen=True, kw_only=True, omit_defaults=True):
    """A list that is whole: there is no further page."""

    items: tuple[_T, ...]


class WaitingQuery(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Another base delay to compute with; it changes nothing."""

    limit: int = 50
    delay_ms: int | None = None


class ErrorsQuery(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How many groups."""

    limit: int = 50


class RollUpsQuery(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """How far back."""

    since_ms: int = 86400000


class DelayQuery(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """After which attempt, and by a base delay or by the policy of such a notification."""

    attempt: int
    delay_ms: int | None = None
    """The base delay, doubling with each attempt; without it, the policy that matches the rest."""
    type: str = "message"
    origin: str = ""
    channel: Channel = Channel.EMAIL
    priority: Priority = Priority.MEDIUM


class RetryDelay(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """How long to wait after an attempt, before jitter."""

    attempt: int
    delay_ms: int
    delay_minutes: float
