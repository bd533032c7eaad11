"""Which notifications: the fields that lists and bulk commands choose by, as the engine's `Filter`."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

from homing.api.answers import ApiError
from homing.core.model import Channel, Filter, Reason, Status
from homing.core.request import provider_id

Text = Annotated[str, Meta(min_length=1, max_length=255, pattern="^[^\\x00-\\x1f\\x7f]+$")]
Limit = Annotated[int, Meta(ge=1, le=500, description="At most so many.")]
Cursor = Annotated[Text, Meta(description="Of the page before: what follows it.")]


class Chosen(
    Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True
):
    """Every field that is given must match."""

    channel: Channel | None = None
    type: Annotated[Text, Meta(examples=["order_confirmed"])] | None = None
    provider: Annotated[Text, Meta(examples=["twilio"])] | None = None
    batch_id: Text | None = None
    address: Annotated[Text, Meta(examples=["ada@example.org"])] | None = None
    reason: Reason | None = None
    error_code: Text | None = None
    created_from: Annotated[datetime, Meta(tz=True)] | None = None
    """Accepted then or later."""
    created_until: Annotated[datetime, Meta(tz=True)] | None = None
    """Accepted before then."""

    def filter(self, statuses: Collection[Status] = (), acknowledged: bool | None = None) -> Filter:
        """What the store is asked for; raises where the times cannot be meant."""
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
