"""The engine's settings tables that have no other home: slots, worker, process and thresholds.

They import nothing of the engine, so that settings can be loaded without it. The tables for retention,
look-ups, receipts and the limits of a request are in the core, next to the rules that use them.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from homing.core.bounds import NOT_A_SETTING, Count, DurationMs, Percentage, PositiveDurationMs
from homing.core.notifications import Mode
from homing.core.search import METADATA_KEY, MOST_METADATA_KEYS

STORE_TIMEOUT_MS = 15_000
"""Default for the time that a request waits for the store.

It is long enough for a failover to another PostgreSQL host during the call.
"""

SlotCount = Annotated[int, Meta(ge=1, extra={"reason": "with 0, notifications would never be sent"})]


class LaneSlots(Struct, frozen=True, kw_only=True):
    """Maximum number of attempts in flight per worker and lane, by mode.

    A lane is a combination of mode and channel.
    """

    priority: SlotCount = 128
    standard: SlotCount = 128
    bulk: SlotCount = 64

    def of(self, mode: Mode) -> int:
        """Returns the limit for each lane of this mode."""
        return int(getattr(self, mode.value))


class WorkerSettings(Struct, frozen=True, kw_only=True):
    """Settings of a worker."""

    poll_ms: PositiveDurationMs = 1_000
    """Longest sleep between two claims if no event wakes the worker."""
    lease_ms: DurationMs = 0
    """Length of a lease. 0 means the longest timeout of a delivery mode plus 10 s."""
    settle_backlog: Annotated[int, NOT_A_SETTING] = 2_000
    """Number of settlements waiting for the store above which the worker claims nothing more."""


MAX_BATCH_SIZE = 10_000
"""Maximum number of notifications that one run of `process` may deliver."""


class ProcessSettings(Struct, frozen=True, kw_only=True):
    """Settings of `homing process`."""

    batch_size: Annotated[int, Meta(ge=1, le=MAX_BATCH_SIZE)] = 50
    """Number of notifications that a run without a limit delivers at most, unless the store has a value."""


class SearchSettings(Struct, frozen=True, kw_only=True):
    """What can be searched for quickly."""

    metadata_keys: Annotated[
        tuple[Annotated[str, Meta(pattern=f"^{METADATA_KEY}$")], ...], Meta(max_length=MOST_METADATA_KEYS)
    ] = ()
    """Keys of the metadata that have an index. Other keys are searched among the newest notifications."""


class AlertThresholds(Struct, frozen=True, kw_only=True):
    """Values beyond which an alert is raised, and the minimum numbers for a rate and a share."""

    retry_backlog: Count = 100
    failure_rate: Percentage = 5.0
    """Percentage of failed notifications among those that were sent or failed in the current clock hour and
    the one before."""
    failure_rate_of: Count = 20
    """Minimum number of notifications sent or failed in those hours for a failure rate alert."""
    oldest_retry_ms: DurationMs = 24 * 3_600_000
    dead_letters_growing: Count = 10
    """New dead letters of the current clock hour, minus those of the hour before."""
    unacknowledged: Count = 100
    """Number of unacknowledged dead letters."""
    oldest_dead_letter_ms: DurationMs = 7 * 24 * 3_600_000
    """Age of the oldest unacknowledged dead letter."""
    within_goal: Percentage = 95.0
    """Percentage of the notifications of a delivery mode that must be sent within the latency goal of the
    mode, in the current clock hour and the one before."""
    within_goal_of: Count = 20
    """Minimum number of notifications sent in the mode in those hours for a latency goal alert."""
    sink_backlog: Count = 10_000
    """Number of events that wait for a sink."""
    sink_lag_ms: DurationMs = 15 * 60_000
    """Age of the oldest event that waits for a sink."""
    unattended_ms: DurationMs = 60_000
    """Time for which work may be due while no worker is live."""
