"""What the service takes and answers with: admin.

Written by tools/make_client.py.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from msgspec import Struct


class AdminRetryBody(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Why it is tried again, and where."""

    reason: str
    """Kept with the notification and in the audit trail."""
    force_provider: str | None = None
    """It goes there and nowhere else."""


class AdminRetried(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The attempt is granted and due now."""

    success: bool
    notification_id: str
    retry_attempt_id: str
    """The notification's id and the number that the attempt will have."""
    status: Literal["queued"]
    estimated_delivery_time: datetime
    """By the latency goal of its mode."""


class PurgeBody(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What is to go: older than `days` whatever its status, or by status; left out: as configured."""

    days: float | None = None
    delivered_days: float | None = None
    sent_days: float | None = None
    others_days: float | None = None
    keys_days: float | None = None
    """Of idempotency keys."""
    dry_run: bool = False
    """Only say how many notifications it would be."""


class Purged(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What was removed, of all tenants. Statistics keep counting it."""

    removed: dict[str, int]
    """By kind: `notifications`, `keys`, `receipts`; with `dryRun`, how many notifications it would be."""
    dry_run: bool
    complete: bool
    """False: there is more, and time was up. Ask again."""
