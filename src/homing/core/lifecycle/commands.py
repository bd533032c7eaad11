"""Commands that operators and callers give to notifications, and their results."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field

from homing.core.notifications import Status


class CommandName(StrEnum):
    """Name of a command to a notification. Each command is permitted only in certain statuses."""

    CANCEL = "cancel"
    RETRY = "retry"
    """Makes a notification due now. A finished notification gets one more attempt. May set a provider."""
    RESEND = "resend"
    """Creates a new notification with the same message. The original is acknowledged and linked to it."""
    ACKNOWLEDGE = "acknowledge"
    RESCHEDULE = "reschedule"
    RESOLVE = "resolve"
    """Sets an `in_doubt` notification to `sent` or `failed`."""
    FAIL = "fail"
    """Ends a waiting or `in_doubt` notification as a dead letter."""


class Command(Struct, frozen=True, kw_only=True):
    """A command with its author and reason, both of which are stored in the history."""

    name: CommandName
    who: str
    why: str = ""
    provider: str | None = None
    """For `retry` and `resend`: provider to use. None keeps the current provider."""
    outlet: str | None = None
    """For `retry` and `resend`: outlet of `provider`. None if the outlet is the provider itself."""
    delay_ms: int = 0
    """For `reschedule`: time from now until the notification is due."""
    resolution: Status | None = None
    """For `resolve`: `sent` or `failed`. None for other commands."""
    new_ids: Mapping[str, str] = field(default_factory=dict)
    """For `resend`: original id → id of the new notification."""
    batch_id: str = ""
    """For `resend`: batch id of the new notifications."""
    max_age_ms: int = 86_400_000
    """For `resend`: maximum age of the new notifications."""


class AmendResult(Struct, frozen=True, kw_only=True):
    """Ids of the notifications to which a command was given, by result."""

    applied: tuple[str, ...] = ()
    requested: tuple[str, ...] = ()
    """Notifications with an attempt in flight. Their cancel takes effect when the attempt ends."""
    refused: Mapping[str, Status] = field(default_factory=dict)
    """Notifications that were not changed → their status, which does not permit the command."""
    missing: tuple[str, ...] = ()
    """Ids that do not exist for this tenant."""
    resent: Mapping[str, str] = field(default_factory=dict)
    """For `resend`: original id → id of the new notification."""
