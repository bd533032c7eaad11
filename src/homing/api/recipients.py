"""Recipients with their devices, and what they want to be told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from msgspec import Meta, Struct

from homing.api.answers import ApiError
from homing.api.routing import Routes
from homing.api.service import Call
from homing.core.access import Scope
from homing.core.errors import InvalidRequest, NotFound
from homing.core.recipients import Device, Preference, QuietWindow, RecipientProfile

routes = Routes("Recipients")

_LINE = "^[^\\x00-\\x1f\\x7f\\x85\\u2028\\u2029]+$"
_MAY_READ = (Scope.READ, Scope.MANAGE)

RecipientId = Annotated[str, Meta(max_length=320, pattern=_LINE, examples=["u-1"])]
Token = Annotated[str, Meta(max_length=4096, pattern=_LINE, examples=["fcm-token-1"])]
Category = Annotated[str, Meta(pattern="^([A-Za-z0-9_.:/-]{1,100}|\\*)$", examples=["newsletter"])]
OnChannel = Annotated[str, Meta(pattern="^(sms|email|push|webhook|chat|queue|\\*)$", examples=["email"])]
PageCursor = Annotated[
    str, Meta(max_length=4500, pattern=_LINE, description="Of the page before: what follows it.")
]
PageLimit = Annotated[int, Meta(ge=1, le=500, description="At most so many.")]


class RecipientWritten(
    Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True
):
    """A recipient whole: what is left out is not there afterwards."""

    email: Annotated[str, Meta(examples=["ada@example.org"])] | None = None
    phone: Annotated[str, Meta(examples=["+15550100"])] | None = None
    url: Annotated[str, Meta(examples=["https://example.org/hook"])] | None = None
    locale: Annotated[str, Meta(examples=["en-GB"])] | None = None
    time_zone: Annotated[str, Meta(examples=["Europe/London"])] | None = None
    """As the tz database names it."""
    quiet_hours: QuietWindow | None = None
    """None: those of the settings."""
    devices: Annotated[tuple[Device, ...], Meta(max_length=50)] = ()
    version: Annotated[int, Meta(ge=0, le=2**53)] = 0
    """The one that was read: 409 where it is no longer the newest. 0: over whatever is there."""


class RecipientPage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """By id; `cursor` asks for what follows, and is left out at the end."""

    items: tuple[RecipientProfile, ...]
    cursor: str | None = None


class RecipientQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which page."""

    limit: PageLimit = 50
    cursor: PageCursor | None = None


class DeviceWritten(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What is said of a device."""

    platform: Annotated[str, Meta(max_length=50, examples=["ios"])] = ""
    active: bool = True
    """False: nothing is sent there."""


class PreferencePage(Struct, frozen=True, kw_only=True):
    """All that one recipient has said."""

    items: tuple[Preference, ...]


class PreferenceWritten(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether they want it."""

    allowed: bool


@routes.get("/recipients", scope=_MAY_READ)
async def list_recipients(call: Call, query: RecipientQuery) -> RecipientPage:
    """List recipients by id."""
    found = await call.front.recipients.list(after=query.cursor or "", limit=query.limit)
    full = len(found) == query.limit
    return RecipientPage(items=found, cursor=found[-1].id if full else None)


@routes.put("/recipients/{id}", scope=Scope.MANAGE, errors=("VERSION_CONFLICT",))
async def put_recipient(call: Call, id: RecipientId, body: RecipientWritten) -> RecipientProfile:
    """Write a recipient, devices included.

    With a `version`, only over that one. A known device that is written without `active` stays as it is.
    """
    await call.note("recipient.put", id)
    with _own_fields():
        return await call.front.recipients.put(
            RecipientProfile(
                id=id,
                email=body.email,
                phone=body.phone,
                url=body.url,
                locale=body.locale,
                time_zone=body.time_zone,
                quiet_hours=body.quiet_hours,
                devices=body.devices,
                version=body.version,
            ),
            who=call.caller.who,
        )


@routes.get("/recipients/{id}", scope=_MAY_READ, errors=("NOT_FOUND",))
async def get_recipient(call: Call, id: RecipientId) -> RecipientProfile:
    """One recipient with their devices."""
    with _own_fields():
        return await call.front.recipients.get(id)


@routes.delete("/recipients/{id}", scope=Scope.MANAGE, status=204, errors=("NOT_FOUND",))
async def delete_recipient(call: Call, id: RecipientId) -> None:
    """Remove a recipient, their devices and preferences.

    Suppressions are of addresses and stay: whoever files the address next must not write to it either.
    """
    await call.note("recipient.delete", id)
    with _own_fields():
        if not await call.front.recipients.delete(id):
            raise NotFound(f"there is no recipient {id!r}")


@routes.put("/recipients/{id}/devices/{token}", scope=Scope.MANAGE, errors=("NOT_FOUND",))
async def put_device(call: Call, id: RecipientId, token: Token, body: DeviceWritten) -> RecipientProfile:
    """Add a device, or say anew whether a known one is active.

    A new one comes first. A token that was filed for somebody else is this recipient's from then on.
    """
    await call.note("device.put", id, active=body.active)
    with _own_fields():
        return await call.front.recipients.put_device(
            id, token, platform=body.platform, active=body.active, who=call.caller.who
        )


@routes.delete("/recipients/{id}/devices/{token}", scope=Scope.MANAGE, status=204, errors=("NOT_FOUND",))
async def delete_device(call: Call, id: RecipientId, token: Token) -> None:
    """Remove a device."""
    await call.note("device.delete", id)
    with _own_fields():
        if not await call.front.recipients.delete_device(id, token, who=call.caller.who):
            raise NotFound(f"the recipient {id!r} has no such device")


@routes.get("/recipients/{id}/preferences", scope=_MAY_READ, errors=("NOT_FOUND",))
async def list_preferences(call: Call, id: RecipientId) -> PreferencePage:
    """What a recipient has said of categories and channels.

    `*` stands for all that nothing else is said of; the most specific one wins, and the category weighs more
    than the channel. Nothing said means allowed. The recipient need not be filed; 404 where nothing is known
    of them at all.
    """
    people = call.front.recipients
    with _own_fields():
        said = await people.preferences(id)
        if not said:
            await people.get(id)
        return PreferencePage(items=said)


@routes.put("/recipients/{id}/preferences/{category}/{channel}", scope=Scope.MANAGE)
async def put_preference(
    call: Call, id: RecipientId, category: Category, channel: OnChannel, body: PreferenceWritten
) -> PreferencePage:
    """Say whether a recipient wants a category on a channel; either may be `*`."""
    await call.note("preference.put", id, category=category, channel=channel, allowed=body.allowed)
    people = call.front.recipients
    with _own_fields():
        await people.prefer(id, category=category, channel=channel, allowed=body.allowed, who=call.caller.who)
        return PreferencePage(items=await people.preferences(id))


@routes.delete(
    "/recipients/{id}/preferences/{category}/{channel}",
    scope=Scope.MANAGE,
    status=204,
    errors=("NOT_FOUND",),
)
async def delete_preference(call: Call, id: RecipientId, category: Category, channel: OnChannel) -> None:
    """Take back what was said."""
    await call.note("preference.delete", id, category=category, channel=channel)
    with _own_fields():
        if not await call.front.recipients.forget_preference(id, category=category, channel=channel):
            raise NotFound(f"nothing is said of {category!r} on {channel!r} for the recipient {id!r}")


@contextmanager
def _own_fields() -> Iterator[None]:
    """Fields are named as this request has them: `email`, not `recipient.email`."""
    try:
        yield
    except InvalidRequest as error:
        message = error.message.removeprefix("recipient.")
        raise ApiError(error.code, message, field=error.field.removeprefix("recipient.")) from None
