"""The interface of bridges, which bring requests in from another system such as a message broker.

A bridge only reads and acknowledges. The engine accepts the requests, in one commit per batch, and lets the
bridge acknowledge them after that commit. A message that was not acknowledged arrives again, and its key
prevents a second notification.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from homing.core.errors import InvalidRequest
from homing.core.send_request import SendRequest


class BridgeMessage(Struct, frozen=True, kw_only=True):
    """One message of a bridge: a request, and what identifies it."""

    key: str
    """Text that is the same whenever this message is delivered again, and different for all other messages.

    Together with the bridge's name, it is the idempotency key of a request that has none of its own.
    """
    request: SendRequest | Mapping[str, Any] | InvalidRequest
    """The request, a mapping of its fields, or the error that was found when the message was read."""
    reference: Any = None
    """The bridge's own data for the acknowledgement, such as a delivery tag or an offset."""
    tenant: str | None = None
    """Tenant of the request. If None, the engine's default tenant."""
    attempts: int = 0
    """Number of attempts that the other system has made. Homing continues the numbering."""
    max_attempts: int | None = None
    """Maximum number of attempts, including `attempts`. If None, the policy's maximum applies."""
    last_error: str | None = None
    """Error of the last attempt that the other system made. None if there is none."""


class HandledMessage(Struct, frozen=True, kw_only=True):
    """A message with its result. Either its notifications are stored, or it was rejected."""

    message: BridgeMessage
    ids: tuple[str, ...] = ()
    """Ids of the notifications. Empty if the message was rejected."""
    duplicate: bool = False
    """True if the message was accepted before."""
    rejection: str | None = None
    """Why no notification was or will be stored, such as an invalid field. None if the message was
    accepted."""
    code: str | None = None
    """Error code of the rejection. None if the message was accepted."""


class Bridge(Protocol):
    """Source of requests that runs for as long as its process. One task at a time calls its methods."""

    async def open(self) -> None:
        """Connects and starts to consume. Called again after each `close`, with growing pauses.

        If it raises or takes longer than 30 s, `close` is called.
        """

    async def receive(self, limit: int) -> Sequence[BridgeMessage]:
        """Waits for messages and returns between one and `limit` of them.

        Not called again before the last messages were acknowledged, so messages stay at their source while
        the store is unavailable. May be cancelled; messages that it has not returned must not be lost. Raises
        if the connection is lost.
        """

    async def acknowledge(self, handled: Sequence[HandledMessage]) -> None:
        """Tells the source that it need not deliver these messages again. They are stored or rejected.

        Must put each rejected message where operators find it, for example into a dead-letter queue, before
        the message is acknowledged. If this method raises or takes longer than 30 s, the bridge is closed
        and opened again.
        """

    async def check(self) -> None:
        """Raises if messages cannot arrive any more, for example because the server has cancelled the
        consumer.

        Called every 10 s while `receive` waits. The bridge is then closed and opened again.
        """

    async def close(self) -> None:
        """Stops consuming and disconnects. Never called while another method runs.

        Messages that were not acknowledged must arrive again.
        """


@runtime_checkable
class SupportsBacklog(Protocol):
    """A bridge that can tell how many messages wait at their source."""

    async def backlog(self) -> int:
        """Returns the number of messages that have not become notifications yet, as far as it is known.

        Called every 10 s, like the other methods never while another one runs, except while `receive` waits.
        An error has no consequence but that the number is unknown. If there is no answer within 5 s, it is
        not called again until the bridge was opened again.
        """


class BridgeState(Struct, frozen=True, kw_only=True):
    """State of a bridge in this process."""

    status: str
    """`ok` while the bridge consumes, otherwise the reason why it does not."""
    accepted: int = 0
    """Number of messages that became notifications, without those that were accepted before."""
    duplicates: int = 0
    rejected: int = 0
    failures: int = 0
    """Number of times that the bridge failed and was opened again."""
    waiting: int | None = None
    """Number of messages that waited at their source some seconds ago. None if that is not known."""
