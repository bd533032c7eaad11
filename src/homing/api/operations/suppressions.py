"""Routes for suppressions: addresses to which nothing may be sent."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from homing.api.http.bodies import ApiResponse
from homing.api.http.routing import Routes
from homing.api.operations.recipients import Category, PageCursor, PageLimit
from homing.api.service import ApiCall
from homing.core.access.scopes import Scope
from homing.core.errors import NotFound
from homing.core.lifecycle.effects import EVERY_CATEGORY
from homing.core.notifications import Channel
from homing.core.recipients.profiles import Suppression

routes = Routes("Suppressions")


Address = Annotated[
    str,
    Meta(max_length=4096, pattern="^[^\\x00-\\x1f\\x7f\\x85\\u2028\\u2029]+$", examples=["ada@example.org"]),
]


class SuppressionPage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A page of suppressions, ordered by channel and address."""

    items: tuple[Suppression, ...]
    """Suppressions of this page."""
    cursor: str | None = None
    """Cursor of the next page. Omitted on the last page."""


class SuppressionQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Selects suppressions and a page of them."""

    channel: Channel | None = None
    """Channel of the suppressions. If omitted, all channels."""
    address: Address | None = None
    """Suppressed address. Requires `channel`. If omitted, all addresses."""
    limit: PageLimit = 50
    cursor: PageCursor | None = None


class SuppressionBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A suppression to add."""

    channel: Channel
    """Channel of the address."""
    address: Address
    """Address to suppress."""
    category: Category = EVERY_CATEGORY
    """Category to suppress. `*` suppresses all categories."""
    why: Annotated[str, Meta(max_length=500, pattern="^[^\\x00-\\x1f\\x7f\\x85\\u2028\\u2029]*$")] = ""
    """Reason for the suppression."""


class SuppressionKeyQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Identifies a suppression. Suppressions of `*` and of a category are separate."""

    channel: Channel
    """Channel of the address."""
    address: Address
    """Suppressed address."""
    category: Category = EVERY_CATEGORY
    """Suppressed category, or `*`."""


@routes.get("/suppressions", scope=(Scope.READ, Scope.MANAGE))
async def list_suppressions(call: ApiCall, query: SuppressionQuery) -> SuppressionPage:
    """List suppressed addresses."""
    found = await call.tenant_api.recipients.suppressions(
        query.channel, query.address, after=query.cursor or "", limit=query.limit
    )
    full = len(found) == query.limit
    return SuppressionPage(items=found, cursor=found[-1].place if full else None)


@routes.post("/suppressions", scope=Scope.MANAGE, status=201)
async def add_suppression(call: ApiCall, body: SuppressionBody) -> ApiResponse[Suppression]:
    """Suppress an address on a channel, in one category or in all of them (`*`).

    Suppressions are checked before every attempt, so notifications that were already accepted are skipped
    too.
    """
    await call.note("suppression.add", category=body.category, channel=body.channel.value, why=body.why)
    suppression = await call.tenant_api.recipients.suppress(
        body.channel, body.address, category=body.category, why=body.why, who=call.caller.who
    )
    return ApiResponse(suppression, 201)


@routes.delete("/suppressions", scope=Scope.MANAGE, status=204, errors=("NOT_FOUND",))
async def lift_suppression(call: ApiCall, query: SuppressionKeyQuery) -> None:
    """Remove a suppression."""
    await call.note("suppression.lift", category=query.category, channel=query.channel.value)
    if not await call.tenant_api.recipients.lift(query.channel, query.address, category=query.category):
        raise NotFound("this address is not suppressed on this channel in this category")
