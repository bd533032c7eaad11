"""Recipients, operation by operation, for asyncio.

Written by tools/make_client.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from homing.client.asking import part
from homing.client.calling import AsyncCalling
from homing.client.structs.recipients import (
    DeviceWritten,
    PreferencePage,
    PreferenceWritten,
    RecipientPage,
    RecipientQuery,
    RecipientWritten,
)
from homing.core.recipients import Device, QuietWindow, RecipientProfile


class AsyncRecipients(AsyncCalling):
    """The operations on recipients."""

    def list_recipients(self, *, limit: int = 50) -> AsyncIterator[RecipientProfile]:
        """List recipients by id."""
        return self._pages(RecipientPage, "/api/v1/recipients", RecipientQuery(limit=limit))

    async def put_recipient(
        self,
        id: str,
        *,
        email: str | None = None,
        phone: str | None = None,
        url: str | None = None,
        locale: str | None = None,
        time_zone: str | None = None,
        quiet_hours: QuietWindow | None = None,
        devices: tuple[Device, ...] = (),
        version: int = 0,
    ) -> RecipientProfile:
        """Write a recipient, devices included.

        With a `version`, only over that one. A known device that is written without `active` stays as
        it is.
        """
        return await self._ask(
            RecipientProfile,
            "PUT",
            f"/api/v1/recipients/{part(id)}",
            body=RecipientWritten(
                email=email,
                phone=phone,
                url=url,
                locale=locale,
                time_zone=time_zone,
                quiet_hours=quiet_hours,
                devices=devices,
                version=version,
            ),
        )

    async def get_recipient(self, id: str) -> RecipientProfile:
        """One recipient with their devices."""
        return await self._ask(RecipientProfile, "GET", f"/api/v1/recipients/{part(id)}")

    async def delete_recipient(self, id: str) -> None:
        """Remove a recipient, their devices and preferences.

        Suppressions are of addresses and stay: whoever files the address next must not write to it
        either.
        """
        await self._ask(type(None), "DELETE", f"/api/v1/recipients/{part(id)}")

    async def put_device(
        self, id: str, token: str, *, platform: str = "", active: bool = True
    ) -> RecipientProfile:
        """Add a device, or say anew whether a known one is active.

        A new one comes first. A token that was filed for somebody else is this recipient's from then
        on.
        """
        return await self._ask(
            RecipientProfile,
            "PUT",
            f"/api/v1/recipients/{part(id)}/devices/{part(token)}",
            body=DeviceWritten(platform=platform, active=active),
        )

    async def delete_device(self, id: str, token: str) -> None:
        """Remove a device."""
        await self._ask(type(None), "DELETE", f"/api/v1/recipients/{part(id)}/devices/{part(token)}")

    async def list_preferences(self, id: str) -> PreferencePage:
        """What a recipient has said of categories and channels.

        `*` stands for all that nothing else is said of; the most specific one wins, and the category
        weighs more than the channel. Nothing said means allowed. The recipient need not be filed; 404
        where nothing is known of them at all.
        """
        return await self._ask(PreferencePage, "GET", f"/api/v1/recipients/{part(id)}/preferences")

    async def put_preference(self, id: str, category: str, channel: str, *, allowed: bool) -> PreferencePage:
        """Say whether a recipient wants a category on a channel; either may be `*`."""
        return await self._ask(
            PreferencePage,
            "PUT",
            f"/api/v1/recipients/{part(id)}/preferences/{part(category)}/{part(channel)}",
            body=PreferenceWritten(allowed=allowed),
        )

    async def delete_preference(self, id: str, category: str, channel: str) -> None:
        """Take back what was said."""
        await self._ask(
            type(None),
            "DELETE",
            f"/api/v1/recipients/{part(id)}/preferences/{part(category)}/{part(channel)}",
        )
