"""Requests about providers, their breakers, and the split of a channel between them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from homing.core.notifications import Channel
from homing.core.routing.failover import MAX_WEIGHT
from homing.core.routing.splits import MAX_OVERRIDE_MS
from homing.wire.common import Why


class TestMessageBody(
    Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True
):
    """Destination of a test message."""

    address: Annotated[str, Meta(min_length=1, max_length=2000, examples=["ada@example.org"])]
    """Address that the message is sent to."""
    channel: Channel | None = None
    """Channel to use. Required if the provider serves several channels."""


class BreakerPhase(StrEnum):
    """State of a breaker that an operator can set."""

    OPEN = "open"
    CLOSED = "closed"
    AUTO = "auto"
    """Automatic control: the breaker opens and closes according to the outcomes of sends."""


class BreakerBody(
    Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True
):
    """New state of a breaker. `open` and `closed` stay in force for `forMs`, or until it is set to `auto`."""

    phase: BreakerPhase
    """State of the breaker. `auto` returns it to automatic control."""
    why: Why = ""
    """Reason for the change."""
    for_ms: Annotated[int, Meta(ge=1, le=30 * 86_400_000, examples=[3_600_000])] | None = None
    """How long `open` or `closed` stays in force, in milliseconds. If omitted, until it is set to `auto`."""


class SplitBody(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Override of how the first attempts of a channel are split between its providers."""

    shares: Annotated[
        dict[Annotated[str, Meta(min_length=1, max_length=100)], Annotated[int, Meta(ge=0, le=MAX_WEIGHT)]],
        Meta(min_length=1, max_length=100, examples=[{"twilio": 20, "sns": 80}]),
    ]
    """Provider → its share, relative to the other shares. A provider with 0, or without a share, is used only
    for failover."""
    why: Annotated[str, Meta(min_length=1, max_length=500, examples=["twilio is slow today"])]
    """Reason for the change."""
    for_ms: Annotated[int, Meta(ge=1, le=MAX_OVERRIDE_MS, examples=[7_200_000])]
    """How long the override holds, in milliseconds. The settings decide again after that."""
