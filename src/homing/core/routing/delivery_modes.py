"""Delivery modes. The first mode that applies is used, in the order synchronous, priority, bulk, standard."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from homing.core.notifications import Mode, Priority

SYNCHRONOUS_TYPES = ("otp", "2fa", "driver_assigned")
"""Notification types that are sent synchronously by default."""


class ModeInfo(Struct, frozen=True):
    """Properties of a delivery mode."""

    queue_name: str
    """Queue name that callers see. Empty for synchronous notifications, which are not queued."""
    latency_goal_ms: int
    """Intended time from acceptance until a provider accepts the message. Only reported, never enforced."""


MODE_INFO: dict[Mode, ModeInfo] = {
    Mode.SYNCHRONOUS: ModeInfo("", 2_000),
    Mode.PRIORITY: ModeInfo("homing-priority", 5_000),
    Mode.STANDARD: ModeInfo("homing-standard", 30_000),
    Mode.BULK: ModeInfo("homing-bulk", 300_000),
}


def mode_of(
    *,
    synchronous: bool | None,
    type_: str,
    priority: Priority,
    bulk: bool,
    synchronous_types: Collection[str] = SYNCHRONOUS_TYPES,
) -> Mode:
    """Returns the delivery mode of a notification.

    If `synchronous` is None, the type decides. False excludes the synchronous mode, whatever the type is.
    """
    if synchronous or (synchronous is None and type_ in synchronous_types):
        return Mode.SYNCHRONOUS
    if priority in (Priority.CRITICAL, Priority.HIGH):
        return Mode.PRIORITY
    if bulk or priority is Priority.LOW:
        return Mode.BULK
    return Mode.STANDARD
