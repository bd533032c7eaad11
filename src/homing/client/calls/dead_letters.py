"""Dead letters, operation by operation.

Written by tools/make_client.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Literal

from homing.client.asking import part
from homing.client.calling import Calling
from homing.client.structs.dead_letters import (
    AcknowledgeBody,
    BulkBody,
    BulkFilter,
    DeadLetterQuery,
    GroupQuery,
    ResendBody,
    Resent,
)
from homing.client.structs.queue import Items
from homing.core.jobs import Job
from homing.core.model import Channel, ErrorGroup, Notification, Page, Reason


class DeadLetters(Calling):
    """The operations on dead letters."""

    def list_dead_letters(
        self,
        *,
        channel: Channel | None = None,
        type: str | None = None,
        provider: str | None = None,
        batch_id: str | None = None,
        address: str | None = None,
        reason: Reason | None = None,
        error_code: str | None = None,
        created_from: datetime | None = None,
        created_until: datetime | None = None,
        acknowledged: bool | None = None,
        limit: int = 50,
    ) -> Iterator[Notification]:
        """List dead letters, unacknowledged first, then newest first.

        The answer's `cursor` asks for what follows; none is the end.
        """
        return self._pages(
            Page,
            "/api/v1/dead-letters",
            DeadLetterQuery(
                channel=channel,
                type=type,
                provider=provider,
                batch_id=batch_id,
                address=address,
                reason=reason,
                error_code=error_code,
                created_from=created_from,
                created_until=created_until,
                acknowledged=acknowledged,
                limit=limit,
            ),
        )

    def group_dead_letters(self, *, limit: int = 50) -> Items[ErrorGroup]:
        """Dead letters by what they died of, most first; the newest of each as an example."""
        return self._ask(
            Items[ErrorGroup], "GET", "/api/v1/dead-letters/groups", query=GroupQuery(limit=limit)
        )

    def bulk_dead_letters(
        self,
        *,
        command: Literal["acknowledge", "resend", "retry", "cancel"],
        filter: BulkFilter | None = None,
        why: str = "",
        dry_run: bool = False,
        rate_per_second: float | None = None,
    ) -> Job:
        """Acknowledge, resend, retry or cancel all that a filter finds.

        With `dryRun`, 200 and how many it would be. Else 202 and a job that goes on by itself: look at
        `/jobs/{id}`. A resend or retry stops when a breaker opens. Synchronous notifications are left
        alone.
        """
        return self._ask(
            Job,
            "POST",
            "/api/v1/dead-letters/bulk",
            body=BulkBody(
                command=command,
                filter=BulkFilter() if filter is None else filter,
                why=why,
                dry_run=dry_run,
                rate_per_second=rate_per_second,
            ),
        )

    def acknowledge_dead_letter(self, id: str, *, why: str = "") -> Notification:
        """Say that somebody has looked at a dead letter."""
        return self._ask(
            Notification,
            "POST",
            f"/api/v1/dead-letters/{part(id)}/acknowledge",
            body=AcknowledgeBody(why=why),
        )

    def resend_dead_letter(self, id: str, *, why: str = "", provider: str | None = None) -> Resent:
        """Send it again: a new notification with the same message and all its attempts.

        The original is acknowledged and linked, and cannot be resent once more.
        """
        return self._ask(
            Resent,
            "POST",
            f"/api/v1/dead-letters/{part(id)}/resend",
            body=ResendBody(why=why, provider=provider),
        )
