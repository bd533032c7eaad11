"""Notifications, operation by operation, for asyncio.

Written by tools/make_client.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, Literal

from homing.client.asking import part
from homing.client.calling import AsyncCalling
from homing.client.structs.notifications import (
    Attempts,
    CancelBody,
    Cancelled,
    ExplanationView,
    NotificationQuery,
    RescheduleBody,
    ResolveBody,
    RetryInfoQuery,
    Sent,
)
from homing.core.model import Channel, Content, Notification, Page, Reason, Recipient, Status
from homing.core.request import SendRequest
from homing.core.retry_numbers import RetryInfo


class AsyncNotifications(AsyncCalling):
    """The operations on notifications."""

    async def send_notification(
        self,
        *,
        recipient: Recipient | None = None,
        recipients: tuple[Recipient, ...] = (),
        channel: str | None = None,
        channels: tuple[str, ...] = (),
        type: str | None = None,
        category: str | None = None,
        priority: str = "medium",
        origin: str = "",
        template_key: str | None = None,
        data: dict[str, Any] | None = None,
        accept_language: str | None = None,
        content: Content | None = None,
        synchronous: bool | None = None,
        bulk: bool = False,
        provider: str | None = None,
        idempotency_key: str | None = None,
        dedup_key: str | None = None,
        send_at: datetime | None = None,
        expires_at: datetime | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Sent:
        """Accept a notification.

        202 means that it is on disk and will be tried until it lands. A synchronous one is sent before
        this answers: 200, 502 or 504, and it is never sent later.
        """
        return await self._ask(
            Sent,
            "POST",
            "/api/v1/notifications/send",
            body=SendRequest(
                recipient=recipient,
                recipients=recipients,
                channel=channel,
                channels=channels,
                type=type,
                category=category,
                priority=priority,
                origin=origin,
                template_key=template_key,
                data=data,
                accept_language=accept_language,
                content=content,
                synchronous=synchronous,
                bulk=bulk,
                provider=provider,
                idempotency_key=idempotency_key,
                dedup_key=dedup_key,
                send_at=send_at,
                expires_at=expires_at,
                metadata={} if metadata is None else metadata,
            ),
            keyed=True,
        )

    def list_notifications(
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
        statuses: tuple[Status, ...] = (),
        acknowledged: bool | None = None,
        limit: int = 50,
    ) -> AsyncIterator[Notification]:
        """Notifications, newest first.

        The answer's `cursor` asks for what follows; none is the end.
        """
        return self._pages(
            Page,
            "/api/v1/notifications",
            NotificationQuery(
                channel=channel,
                type=type,
                provider=provider,
                batch_id=batch_id,
                address=address,
                reason=reason,
                error_code=error_code,
                created_from=created_from,
                created_until=created_until,
                statuses=statuses,
                acknowledged=acknowledged,
                limit=limit,
            ),
        )

    async def get_notification(self, id: str) -> Notification:
        """One notification, as it is now."""
        return await self._ask(Notification, "GET", f"/api/v1/notifications/{part(id)}")

    async def get_attempts(self, id: str) -> Attempts:
        """Every attempt, and everything else that changed it."""
        return await self._ask(Attempts, "GET", f"/api/v1/notifications/{part(id)}/attempts")

    async def explain_notification(self, id: str) -> ExplanationView:
        """What happened, by which policy and why that one, and what comes next."""
        return await self._ask(ExplanationView, "GET", f"/api/v1/notifications/{part(id)}/explain")

    async def get_retry_info(
        self, id: str, *, max_attempts: int | None = None, delay_ms: int | None = None
    ) -> RetryInfo:
        """Where it stands in its retries, by its policy or by the settings given."""
        return await self._ask(
            RetryInfo,
            "GET",
            f"/api/v1/notifications/{part(id)}/retry-info",
            query=RetryInfoQuery(max_attempts=max_attempts, delay_ms=delay_ms),
        )

    async def cancel_notification(self, id: str, *, why: str = "") -> Cancelled:
        """Cancel one that has not been sent.

        `requested`: an attempt is under way; it may still be sent by that one, and there will be no
        further one.
        """
        return await self._ask(
            Cancelled, "POST", f"/api/v1/notifications/{part(id)}/cancel", body=CancelBody(why=why)
        )

    async def reschedule_notification(self, id: str, *, delay_ms: int, why: str = "") -> Notification:
        """Have one that waits tried later, or sooner."""
        return await self._ask(
            Notification,
            "POST",
            f"/api/v1/notifications/{part(id)}/reschedule",
            body=RescheduleBody(delay_ms=delay_ms, why=why),
        )

    async def resolve_notification(
        self, id: str, *, status: Literal["sent", "failed"], why: str = ""
    ) -> Notification:
        """Say what became of one in doubt."""
        return await self._ask(
            Notification,
            "POST",
            f"/api/v1/notifications/{part(id)}/resolve",
            body=ResolveBody(status=status, why=why),
        )
