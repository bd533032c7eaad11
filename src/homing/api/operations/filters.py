"""The filter fields that lists and bulk commands share, and their conversion to the engine's `Filter`."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

from homing.api.http.bodies import ApiError
from homing.core.notifications import Channel, Filter, Reason, Status
from homing.core.send_request import provider_id

Text = Annotated[str, Meta(min_length=1, max_length=255, pattern="^[^\\x00-\\x1f\\x7f]+$")]

Limit = Annotated[int, Meta(ge=1, le=500, description="Maximum number of items to return.")]

Cursor = Annotated[
    Text, Meta(description="Cursor from the previous page. If omitted, the first page is returned.")
]


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

    def filter(self, statuses: Collection[Status] = (), acknowledged: bool | None = None) -> Filter:
        """Returns the engine's filter. Raises if `createdUntil` is before `createdFrom`."""
        if self.created_from and self.created_until and self.created_from > self.created_until:
            raise ApiError("INVALID_REQUEST", "createdUntil: is before createdFrom", field="createdUntil")
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
        )
