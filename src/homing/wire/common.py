"""Fields and structs that requests and answers of several subjects share."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Annotated, Generic, TypeVar

from msgspec import Meta, Struct

from homing.core.errors import InvalidRequest
from homing.core.notifications import Channel, Filter, Reason, Status
from homing.core.send_request import provider_id

Text = Annotated[str, Meta(min_length=1, max_length=255, pattern="^[^\\x00-\\x1f\\x7f]+$")]

KeyAndValue = Annotated[
    str,
    Meta(
        max_length=1000,
        pattern="^[^=,]+=[^,\\x00]*$",
        examples=["entry_id=42"],
        extra={"form": "key=value, both without commas"},
    ),
]

Limit = Annotated[int, Meta(ge=1, le=500, description="Maximum number of items to return.")]

Cursor = Annotated[
    Text, Meta(description="Cursor from the previous page. If omitted, the first page is returned.")
]

LINE = "^[^\\x00-\\x1f\\x7f\\x85\\u2028\\u2029]+$"
"""Pattern of text without line breaks and control characters."""

PageCursor = Annotated[
    str,
    Meta(
        max_length=4500,
        pattern=LINE,
        description="Cursor from the previous page. If omitted, the first page is returned.",
    ),
]

Category = Annotated[str, Meta(pattern="^([A-Za-z0-9_.:/-]{1,100}|\\*)$", examples=["newsletter"])]

DelayMs = Annotated[int, Meta(ge=0, le=100 * 365 * 86_400_000, examples=[300_000])]

Why = Annotated[str, Meta(max_length=1000, pattern="^[^\\x00]*$", examples=["asked by the customer"])]


class FilterFields(
    Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True
):
    """Selects notifications. All given fields must match."""

    channel: Channel | None = None
    """Channel of the notification."""
    type: Annotated[Text, Meta(examples=["order_confirmed"])] | None = None
    """Type of the notification."""
    provider: Annotated[Text, Meta(examples=["twilio"])] | None = None
    """Id of the provider that the notification is assigned to."""
    batch_id: Text | None = None
    """Id of the batch that the notification belongs to."""
    address: Annotated[Text, Meta(examples=["ada@example.org"])] | None = None
    """Address of the recipient."""
    reason: Reason | None = None
    """Reason for the current status."""
    error_code: Text | None = None
    """Most recent error code, from an attempt or a receipt."""
    created_from: Annotated[datetime, Meta(tz=True)] | None = None
    """Earliest time of acceptance, inclusive."""
    created_until: Annotated[datetime, Meta(tz=True)] | None = None
    """Latest time of acceptance, exclusive."""
    metadata: tuple[KeyAndValue, ...] = ()
    """Key and value, separated by `=`, that the metadata must have on its top level, both without commas."""

    def filter(self, statuses: Collection[Status] = (), acknowledged: bool | None = None) -> Filter:
        """Returns the engine's filter. Raises if `createdUntil` is before `createdFrom`."""
        if self.created_from and self.created_until and self.created_from > self.created_until:
            raise InvalidRequest("createdUntil", "is before createdFrom")
        return Filter(
            statuses=tuple(statuses),
            channel=self.channel,
            type=self.type,
            provider=None if self.provider is None else provider_id(self.provider),
            batch_id=self.batch_id,
            address=self.address,
            reason=self.reason,
            error_code=self.error_code,
            acknowledged=acknowledged,
            created_from=self.created_from,
            created_until=self.created_until,
            metadata={one.partition("=")[0]: one.partition("=")[2] for one in self.metadata},
        )


_T = TypeVar("_T")


class ItemList(Struct, Generic[_T], frozen=True):
    """A list that is returned as a whole, not in pages."""

    items: tuple[_T, ...]


class ErrorDetail(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Description of an error."""

    code: Annotated[str, Meta(pattern="^[A-Z][A-Z_]+$", examples=["INVALID_REQUEST"])]
    """Error code, for programs. The reference lists all codes."""
    message: Annotated[str, Meta(examples=["recipient.email: is empty; email needs it"])]
    """Description of the problem and how to fix it, for people."""
    field: Annotated[str | None, Meta(examples=["recipient.email"])] = None
    """Part of the request that was rejected. Omitted if the error is not about one part."""
    notification_id: str | None = None
    """Id of the notification that the error is about, for example of a failed synchronous send."""


class ErrorBody(Struct, frozen=True, kw_only=True):
    """Body of every error response."""

    error: ErrorDetail
