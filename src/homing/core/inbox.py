"""The inbox: what other programs wrote into the store themselves (SQL), for a worker to take in."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol, runtime_checkable

from msgspec import Struct

from homing.core.model import AmendResult, Command, Submission


class EnqueuedKind(StrEnum):
    """What is asked for."""

    SEND = "send"
    RETRY = "retry"
    ACKNOWLEDGE = "acknowledge"
    RESEND = "resend"
    CLEANUP = "cleanup"


class Enqueued(Struct, frozen=True, kw_only=True):
    """One entry of the inbox, leased to whoever took it."""

    number: int
    kind: EnqueuedKind
    tenant: str
    id: str
    """Of the notification that a request becomes (of the batch, where it becomes several), or a resend."""
    notification_id: str | None = None
    """What a command is about."""
    request: str = "{}"
    """The send request as JSON, as on the wire. Nobody has looked at it yet."""
    already_failed: bool = False
    """The first attempt was made elsewhere."""
    last_error: str | None = None
    max_retries: int | None = None
    who: str = ""
    why: str = ""


class Intaken(Struct, frozen=True):
    """What intake made of one entry."""

    number: int
    submission: Submission
    otherwise: Submission | None = None
    """Stored instead where the submission's idempotency key was used with another body: a dead letter."""


@runtime_checkable
class Inbox(Protocol):
    """A store that other programs can write to. An entry leaves with what it becomes, in one transaction."""

    async def take_inbox(self, limit: int, lease_ms: int) -> tuple[Enqueued, ...]:
        """Oldest first; others leave them alone until the lease is over."""

    async def accept_inbox(self, batch: Sequence[Intaken]) -> int:
        """Accepts the submissions of entries that are still there; how many."""

    async def amend_inbox(self, number: int, tenant: str, id: str, command: Command) -> AmendResult | None:
        """Gives the command of an entry; None: somebody else has done so."""

    async def remove_inbox(self, numbers: Sequence[int]) -> None:
        """Removes entries that have been done."""

    async def tell_schedule(self, delays_ms: Sequence[int]) -> None:
        """The delays before each retry of the policy that is in force, for who asks in SQL."""
