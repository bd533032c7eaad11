"""Routes for recipients, their devices and their preferences."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from msgspec import Meta

from homing.api.http.bodies import ApiError
from homing.api.http.routing import Routes
from homing.api.service import ApiCall
from homing.core.access.scopes import Scope
from homing.core.errors import InvalidRequest, NotFound
from homing.core.recipients.profiles import RecipientProfile
from homing.wire.common import LINE, Category
from homing.wire.recipients import (
    DeviceBody,
    PreferenceBody,
    PreferenceList,
    RecipientBody,
    RecipientPage,
    RecipientQuery,
)

routes = Routes("Recipients")


_MAY_READ = (Scope.READ, Scope.MANAGE)


RecipientId = Annotated[str, Meta(max_length=320, pattern=LINE, examples=["u-1"])]

Token = Annotated[str, Meta(max_length=4096, pattern=LINE, examples=["fcm-token-1"])]


OnChannel = Annotated[str, Meta(pattern="^(sms|email|push|webhook|chat|queue|\\*)$", examples=["email"])]


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
