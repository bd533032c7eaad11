"""The SQL inbox: requests that other programs write into the store by SQL, for a worker to process."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol, runtime_checkable

from msgspec import Struct

from homing.core.model import AmendResult, Command, Submission


class EnqueuedKind(StrEnum):
    """What an inbox entry requests."""

    SEND = "send"
    RETRY = "retry"
    ACKNOWLEDGE = "acknowledge"
    RESEND = "resend"
    CLEANUP = "cleanup"


class Enqueued(Struct, frozen=True, kw_only=True):
    """One inbox entry, leased to the worker that took it."""

    number: int
    kind: EnqueuedKind
    tenant: str
    id: str
    """Id of the notification to be created, or of its batch if the request creates several. For a command
    other than `resend`, it is unused."""
    notification_id: str | None = None
    """Notification that a command applies to. None for a send request."""
    request: str = "{}"
    """Send request as JSON, in the format of the API. It has not been validated yet."""
    already_failed: bool = False
    """True if the first attempt was made, and failed, before the entry was written."""
    last_error: str | None = None
    """Error text of that attempt. None if there was none."""
    max_retries: int | None = None
    """Maximum number of retries of this notification. None if the policy decides."""
    who: str = ""
    why: str = ""


class Intaken(Struct, frozen=True):
    """The submission that intake built from one inbox entry."""

    number: int
    submission: Submission
    otherwise: Submission | None = None
    """Stored instead, as a dead letter, if the submission's idempotency key belongs to a different request.
    None if the submission has no such key."""


@runtime_checkable
class Inbox(Protocol):
    """A store that other programs can write to by SQL.

    An entry is removed in the same transaction that stores its notification or applies its command.
    """

    async def take_inbox(self, limit: int, lease_ms: int) -> tuple[Enqueued, ...]:
        """Leases the oldest entries. No other worker gets them before the lease expires."""

    async def accept_inbox(self, batch: Sequence[Intaken]) -> int:
        """Accepts the submissions whose entries still exist and returns their number."""

    async def amend_inbox(self, number: int, tenant: str, id: str, command: Command) -> AmendResult | None:
        """Applies an entry's command. Returns None if another worker has already done so."""

    async def remove_inbox(self, numbers: Sequence[int]) -> None:
        """Removes entries that have been processed."""

    async def tell_schedule(self, delays_ms: Sequence[int]) -> None:
        """Stores the delays before each retry of the current policy, for SQL functions that show them."""
