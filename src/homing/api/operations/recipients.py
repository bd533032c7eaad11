"""Routes for recipients, their devices and their preferences."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from msgspec import Meta, Struct

from homing.api.http.bodies import ApiError
from homing.api.http.routing import Routes
from homing.api.service import ApiCall
from homing.core.access.scopes import Scope
from homing.core.errors import InvalidRequest, NotFound
from homing.core.recipients.profiles import Device, Preference, QuietWindow, RecipientProfile

routes = Routes("Recipients")


_LINE = "^[^\\x00-\\x1f\\x7f\\x85\\u2028\\u2029]+$"

_MAY_READ = (Scope.READ, Scope.MANAGE)


RecipientId = Annotated[str, Meta(max_length=320, pattern=_LINE, examples=["u-1"])]

Token = Annotated[str, Meta(max_length=4096, pattern=_LINE, examples=["fcm-token-1"])]

Category = Annotated[str, Meta(pattern="^([A-Za-z0-9_.:/-]{1,100}|\\*)$", examples=["newsletter"])]

OnChannel = Annotated[str, Meta(pattern="^(sms|email|push|webhook|chat|queue|\\*)$", examples=["email"])]

PageCursor = Annotated[
    str,
    Meta(
        max_length=4500,
        pattern=_LINE,
        description="Cursor from the previous page. If omitted, the first page is returned.",
    ),
]

PageLimit = Annotated[int, Meta(ge=1, le=500, description="Maximum number of items to return.")]


class RecipientBody(
    Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True
):
    """All properties of a recipient. Properties that are omitted are removed."""

    email: Annotated[str, Meta(examples=["ada@example.org"])] | None = None
    """Email address."""
    phone: Annotated[str, Meta(examples=["+15550100"])] | None = None
    """Phone number in international format."""
    url: Annotated[str, Meta(examples=["https://example.org/hook"])] | None = None
    """URL for webhook notifications."""
    locale: Annotated[str, Meta(examples=["en-GB"])] | None = None
    """Preferred language, as a language tag."""
    time_zone: Annotated[str, Meta(examples=["Europe/London"])] | None = None
    """Time zone, as a name from the tz database."""
    quiet_hours: QuietWindow | None = None
    """Hours in which nothing is sent. If omitted, the quiet hours in the settings apply."""
    devices: Annotated[tuple[Device, ...], Meta(max_length=50)] = ()
    """Devices for push notifications."""
    version: Annotated[int, Meta(ge=0, le=2**53)] = 0
    """Version that this change is based on. If it is no longer the newest, the response is 409.

    If 0, any version is overwritten.
    """


class RecipientPage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A page of recipients, ordered by id."""

    items: tuple[RecipientProfile, ...]
    """Recipients of this page."""
    cursor: str | None = None
    """Cursor of the next page. Omitted on the last page."""


class RecipientQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Selects a page of recipients."""

    limit: PageLimit = 50
    cursor: PageCursor | None = None


class DeviceBody(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Properties of a device."""

    platform: Annotated[str, Meta(max_length=50, examples=["ios"])] = ""
    """Platform of the device."""
    active: bool = True
    """If false, nothing is sent to the device."""


class PreferenceList(Struct, frozen=True, kw_only=True):
    """All preferences of one recipient."""

    items: tuple[Preference, ...]
    """Preferences, one per category and channel."""


class PreferenceBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A recipient's preference for a category on a channel."""

    allowed: bool
    """True if notifications of the category may be sent on the channel."""


@routes.get("/recipients", scope=_MAY_READ)
async def list_recipients(call: ApiCall, query: RecipientQuery) -> RecipientPage:
    """List recipients, ordered by id."""
    found = await call.tenant_api.recipients.list(after=query.cursor or "", limit=query.limit)
    full = len(found) == query.limit
    return RecipientPage(items=found, cursor=found[-1].id if full else None)


@routes.put("/recipients/{id}", scope=Scope.MANAGE, errors=("VERSION_CONFLICT",))
async def put_recipient(call: ApiCall, id: RecipientId, body: RecipientBody) -> RecipientProfile:
    """Create or replace a recipient, including the devices.

    If `version` is not 0, the recipient is replaced only if this is still its newest version. A known device
    that is given without `active` keeps its state.
    """
    await call.note("recipient.put", id)
    with _body_field_names():
        return await call.tenant_api.recipients.put(
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
async def get_recipient(call: ApiCall, id: RecipientId) -> RecipientProfile:
    """Retrieve a recipient, including the devices."""
    with _body_field_names():
        return await call.tenant_api.recipients.get(id)


@routes.delete("/recipients/{id}", scope=Scope.MANAGE, status=204, errors=("NOT_FOUND",))
async def delete_recipient(call: ApiCall, id: RecipientId) -> None:
    """Delete a recipient, including devices and preferences.

    Suppressions belong to addresses and are kept, even if the address is used for another recipient later.
    """
    await call.note("recipient.delete", id)
    with _body_field_names():
        if not await call.tenant_api.recipients.delete(id):
            raise NotFound(f"there is no recipient {id!r}")


@routes.put("/recipients/{id}/devices/{token}", scope=Scope.MANAGE, errors=("NOT_FOUND",))
async def put_device(call: ApiCall, id: RecipientId, token: Token, body: DeviceBody) -> RecipientProfile:
    """Add a device, or update the state of a known one.

    A new device becomes the first in the list. A token that belongs to another recipient moves to this one.
    """
    await call.note("device.put", id, active=body.active)
    with _body_field_names():
        return await call.tenant_api.recipients.put_device(
            id, token, platform=body.platform, active=body.active, who=call.caller.who
        )


@routes.delete("/recipients/{id}/devices/{token}", scope=Scope.MANAGE, status=204, errors=("NOT_FOUND",))
async def delete_device(call: ApiCall, id: RecipientId, token: Token) -> None:
    """Delete a device."""
    await call.note("device.delete", id)
    with _body_field_names():
        if not await call.tenant_api.recipients.delete_device(id, token, who=call.caller.who):
            raise NotFound(f"the recipient {id!r} has no such device")


@routes.get("/recipients/{id}/preferences", scope=_MAY_READ, errors=("NOT_FOUND",))
async def list_preferences(call: ApiCall, id: RecipientId) -> PreferenceList:
    """List a recipient's preferences by category and channel.

    `*` matches every category or channel without a preference of its own. The most specific preference
    applies, and the category takes precedence over the channel. Without a preference, sending is allowed. A
    recipient can have preferences without a profile; if neither exists, the response is 404.
    """
    people = call.tenant_api.recipients
    with _body_field_names():
        found = await people.preferences(id)
        if not found:
            await people.get(id)  # raises NotFound if there is no profile either
        return PreferenceList(items=found)


@routes.put("/recipients/{id}/preferences/{category}/{channel}", scope=Scope.MANAGE)
async def put_preference(
    call: ApiCall, id: RecipientId, category: Category, channel: OnChannel, body: PreferenceBody
) -> PreferenceList:
    """Set whether a recipient allows a category on a channel. Either may be `*`."""
    await call.note("preference.put", id, category=category, channel=channel, allowed=body.allowed)
    people = call.tenant_api.recipients
    with _body_field_names():
        await people.prefer(id, category=category, channel=channel, allowed=body.allowed, who=call.caller.who)
        return PreferenceList(items=await people.preferences(id))


@routes.delete(
    "/recipients/{id}/preferences/{category}/{channel}",
    scope=Scope.MANAGE,
    status=204,
    errors=("NOT_FOUND",),
)
async def delete_preference(call: ApiCall, id: RecipientId, category: Category, channel: OnChannel) -> None:
    """Delete a preference."""
    await call.note("preference.delete", id, category=category, channel=channel)
    with _body_field_names():
        if not await call.tenant_api.recipients.forget_preference(id, category=category, channel=channel):
            raise NotFound(f"the recipient {id!r} has no preference for {category!r} on {channel!r}")


@contextmanager
def _body_field_names() -> Iterator[None]:
    """Renames the field of an `InvalidRequest` as in the request body: `recipient.email` to `email`."""
    try:
        yield
    except InvalidRequest as error:
        message = error.message.removeprefix("recipient.")
        raise ApiError(error.code, message, field=error.field.removeprefix("recipient.")) from None
