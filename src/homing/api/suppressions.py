"""Addresses that must not be written to."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from homing.api.answers import Answer
from homing.api.recipients import Category, PageCursor, PageLimit
from homing.api.routing import Routes
from homing.api.service import Call
from homing.core.access import Scope
from homing.core.effects import EVERY_CATEGORY
from homing.core.errors import NotFound
from homing.core.model import Channel
from homing.core.recipients import Suppression

routes = Routes("Suppressions")

Address = Annotated[
    str,
    Meta(max_length=4096, pattern="^[^\\x00-\\x1f\\x7f\\x85\\u2028\\u2029]+$", examples=["ada@example.org"]),
]


class SuppressionPage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """By channel and address; `cursor` asks for what follows, and is left out at the end."""

    items: tuple[Suppression, ...]
    cursor: str | None = None


class SuppressionQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All, those of a channel, or those of one address on a channel."""

    channel: Channel | None = None
    address: Address | None = None
    """Needs `channel`."""
    limit: PageLimit = 50
    cursor: PageCursor | None = None


class SuppressionWritten(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which address, and what of."""

    channel: Channel
    address: Address
    category: Category = EVERY_CATEGORY
    """`*`: nothing at all goes there any more."""
    why: Annotated[str, Meta(max_length=500, pattern="^[^\\x00-\\x1f\\x7f\\x85\\u2028\\u2029]*$")] = ""


class SuppressionPlace(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which one. One for `*` and one for a category are two."""

    channel: Channel
    address: Address
    category: Category = EVERY_CATEGORY


@routes.get("/suppressions", scope=(Scope.READ, Scope.MANAGE))
async def list_suppressions(call: Call, query: SuppressionQuery) -> SuppressionPage:
    """List addresses that must not be written to."""
    found = await call.front.recipients.suppressions(
        query.channel, query.address, after=query.cursor or "", limit=query.limit
    )
    full = len(found) == query.limit
    return SuppressionPage(items=found, cursor=found[-1].place if full else None)


@routes.post("/suppressions", scope=Scope.MANAGE, status=201)
async def add_suppression(call: Call, body: SuppressionWritten) -> Answer[Suppression]:
    """Suppress an address on a channel: in one category, or (`*`) in all.

    What is on its way is skipped too: it is looked at before every attempt.
    """
    await call.note("suppression.add", category=body.category, channel=body.channel.value, why=body.why)
    made = await call.front.recipients.suppress(
        body.channel, body.address, category=body.category, why=body.why, who=call.caller.who
    )
    return Answer(made, 201)


@routes.delete("/suppressions", scope=Scope.MANAGE, status=204, errors=("NOT_FOUND",))
async def lift_suppression(call: Call, query: SuppressionPlace) -> None:
    """Lift one suppression."""
    await call.note("suppression.lift", category=query.category, channel=query.channel.value)
    if not await call.front.recipients.lift(query.channel, query.address, category=query.category):
        raise NotFound("there is no such suppression")
