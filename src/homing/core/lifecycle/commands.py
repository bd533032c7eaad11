"""Commands that operators and callers give to notifications, and their results."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field

from homing.core.notifications import Status


class CommandName(StrEnum):
    """What an operator or caller can do to a notification. Each command is permitted in certain statuses."""

    CANCEL = "cancel"
    RETRY = "retry"
    """Makes a notification due now. A finished one gets one more attempt. May force a provider."""
    RESEND = "resend"
    """Creates a new notification with the same message. The original is acknowledged and linked to it."""
    ACKNOWLEDGE = "acknowledge"
    RESCHEDULE = "reschedule"
    RESOLVE = "resolve"
    """Sets an `in_doubt` notification to `sent` or `failed`."""


class Command(Struct, frozen=True, kw_only=True):
    """A command with its author and reason, both of which are stored in the history."""

    name: CommandName
    who: str
    why: str = ""
    provider: str | None = None
    """Provider to use, for `retry` and `resend`. None keeps the current one."""
    outlet: str | None = None
    """Outlet of `provider`. None if it equals the provider's id."""
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
    """Ids of the notifications of a command, by result."""

    applied: tuple[str, ...] = ()
    requested: tuple[str, ...] = ()
    """Currently being attempted. A cancel takes effect when the attempt ends."""
    refused: Mapping[str, Status] = field(default_factory=dict)
    """Not changed, because the command is not permitted in their status."""
    missing: tuple[str, ...] = ()
    """Not found for this tenant."""
    resent: Mapping[str, str] = field(default_factory=dict)
    """Original id → id of the new notification."""
