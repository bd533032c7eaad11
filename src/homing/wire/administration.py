"""Requests and answers about retries by hand and purges."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta, Struct

from homing.wire.common import Text

Days = Annotated[float, Meta(ge=0, le=36_500)]


class AdminRetryBody(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, rename="camel"
):
    """Reason for the retry, and optionally the provider to use."""

    reason: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=1000,
            pattern="^[^\\x00]*[^\\x00\\s][^\\x00]*$",
            examples=["Customer support request: the provider was down"],
        ),
    ]
    """Reason for the retry. Stored with the notification and in the audit trail."""
    force_provider: Annotated[Text, Meta(examples=["AWS_SNS"])] | None = None
    """Id of the only provider that is tried. If omitted, the provider is chosen as usual."""


class AdminRetryResponse(Struct, frozen=True, kw_only=True, rename="camel"):
    """Confirmation that the notification is due for another attempt now."""

    success: bool
    notification_id: str
    retry_attempt_id: Annotated[str, Meta(examples=["018d0c7e-5a00-7000-8000-000000000001:4"])]
    """The notification's id, a colon and the number of the upcoming attempt."""
    status: Literal["queued"]
    estimated_delivery_time: datetime
    """Expected delivery time, according to the latency goal of the notification's mode."""


class PurgeBody(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, rename="camel"
):
    """Minimum ages of the records to remove: one for all records (`days`), or one for each kind.

    Ages that are omitted come from the service's retention settings.
    """

    days: Days | None = None
    """Minimum age of all records, in days. Cannot be combined with the other ages."""
    delivered_days: Days | None = None
    """Minimum age of delivered notifications, in days."""
    sent_days: Days | None = None
    """Minimum age of sent notifications, in days."""
    others_days: Days | None = None
    """Minimum age of notifications that ended in any other status, in days."""
    keys_days: Days | None = None
    """Minimum age of idempotency keys and receipts, in days."""
    dry_run: bool = False
    """If true, nothing is removed, and the response has the number of notifications that would be removed."""


class PurgeResponse(Struct, frozen=True, kw_only=True, rename="camel"):
    """Numbers of removed records of all tenants. Hourly totals and rates still include what was removed."""

    removed: Mapping[str, int]
    """Number of removed records by kind: `notifications`, `keys`, `receipts`, and `events` that no sink took.

    With `dryRun`, the number of notifications that would be removed.
    """
    dry_run: bool
    complete: bool
    """False if the time limit was reached before everything was removed. Repeat the request to continue."""
