"""Queue, operation by operation, for asyncio.

Written by tools/make_client.py.
"""

from __future__ import annotations

from homing.client.calling import AsyncCalling
from homing.client.structs.queue import (
    DelayQuery,
    ErrorsQuery,
    Items,
    PendingQuery,
    RetryDelay,
    RollUpsQuery,
    WaitingQuery,
)
from homing.core.model import Channel, ErrorGroup, Notification, Priority, RollUp
from homing.core.retry_numbers import AttemptStatistics, AttemptSuccess, HealthMetrics


class AsyncQueue(AsyncCalling):
    """The operations on queue."""

    async def get_queue_counts(self) -> dict[str, int]:
        """How many notifications have each status."""
        return await self._ask(dict[str, int], "GET", "/api/v1/queue/counts")

    async def list_pending(
        self, *, limit: int = 50, max_attempts: int | None = None, delay_ms: int | None = None
    ) -> Items[Notification]:
        """What is ready to be attempted now, by its policy or by the settings given."""
        return await self._ask(
            Items[Notification],
            "GET",
            "/api/v1/queue/pending",
            query=PendingQuery(limit=limit, max_attempts=max_attempts, delay_ms=delay_ms),
        )

    async def list_waiting(self, *, limit: int = 50, delay_ms: int | None = None) -> Items[Notification]:
        """What waits for its next attempt after one that failed, soonest first; `nextRetryAt` says until
        when.
        """
        return await self._ask(
            Items[Notification],
            "GET",
            "/api/v1/queue/waiting",
            query=WaitingQuery(limit=limit, delay_ms=delay_ms),
        )

    async def get_retry_statistics(self) -> Items[AttemptStatistics]:
        """Notifications by the number of attempts made."""
        return await self._ask(Items[AttemptStatistics], "GET", "/api/v1/queue/statistics")

    async def get_success_by_attempt(self) -> Items[AttemptSuccess]:
        """Of those that ended after n attempts, how many were sent. Purged ones count."""
        return await self._ask(Items[AttemptSuccess], "GET", "/api/v1/queue/success-by-attempt")

    async def get_queue_health(self) -> HealthMetrics:
        """Thirteen numbers that say how retrying goes."""
        return await self._ask(HealthMetrics, "GET", "/api/v1/queue/health")

    async def list_error_groups(self, *, limit: int = 50) -> Items[ErrorGroup]:
        """Dead letters by what they died of, most first."""
        return await self._ask(
            Items[ErrorGroup], "GET", "/api/v1/queue/errors", query=ErrorsQuery(limit=limit)
        )

    async def list_roll_ups(self, *, since_ms: int = 86400000) -> Items[RollUp]:
        """Hourly sums by channel and provider. A purge does not touch them."""
        return await self._ask(
            Items[RollUp], "GET", "/api/v1/queue/roll-ups", query=RollUpsQuery(since_ms=since_ms)
        )

    async def calculate_delay(
        self,
        *,
        attempt: int,
        delay_ms: int | None = None,
        type: str = "message",
        origin: str = "",
        channel: Channel = Channel.EMAIL,
        priority: Priority = Priority.MEDIUM,
    ) -> RetryDelay:
        """How long the wait after an attempt is, before jitter."""
        return await self._ask(
            RetryDelay,
            "GET",
            "/api/v1/queue/delay",
            query=DelayQuery(
                attempt=attempt,
                delay_ms=delay_ms,
                type=type,
                origin=origin,
                channel=channel,
                priority=priority,
            ),
        )
