"""Reads the sums of single minutes, for both stores."""

from __future__ import annotations

from homing.core.lifecycle import views
from homing.core.notifications import Channel
from homing.core.statistics import LATENESS_BUCKETS, MinuteRollUp
from homing.stores.common.change_effects import MINUTE_MS, MINUTE_SUMS


def first_minute(now: int, since_ms: int, step_ms: int) -> int:
    """Returns the time after which minutes are read: the end of the step before the first one."""
    first = now - since_ms
    return first - first % max(step_ms, MINUTE_MS) - 1


def build_minute_roll_up(step_at: int, tenant: str, channel: str, provider: str, *sums: int) -> MinuteRollUp:
    """Builds the roll-up of a row: start of the step, tenant, channel, provider and `MINUTE_SUMS`."""
    lateness = sums[-LATENESS_BUCKETS:]
    return MinuteRollUp(
        minute_at=views.optional_moment(step_at),
        tenant=tenant,
        channel=Channel(channel),
        provider=provider,
        lateness=lateness,
        **dict(zip(MINUTE_SUMS[:-LATENESS_BUCKETS], sums, strict=False)),
    )
