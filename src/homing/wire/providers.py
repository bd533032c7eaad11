"""Requests about providers and their breakers."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from homing.core.notifications import Channel
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
