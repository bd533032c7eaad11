"""What the service takes and answers with: batch.

Written by tools/make_client.py.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class BatchItem(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What became of one request of a batch: queued with its ids, or rejected with what is wrong."""

    index: int
    """Its place in the batch, from 0."""
    status: Literal["queued", "rejected"]
    batch_id: str | None = None
    notification_id: str | None = None
    """Where there is exactly one."""
    notification_ids: tuple[str, ...] = ()
    queue_name: str | None = None
    duplicate: bool = False
    field: str | None = None
    code: str | None = None
    message: str | None = None


class BatchResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of all of them, in their order."""

    accepted: int
    rejected: int
    results: tuple[BatchItem, ...]
