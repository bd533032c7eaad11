"""Unsubscribe links in emails: their settings, their creation, and what happens when they are followed."""

from __future__ import annotations

import secrets
from collections.abc import Collection

from msgspec import Struct

from homing.core.content.email import MAX_HEADER_VALUE
from homing.core.errors import LinkRefused
from homing.core.notifications import Channel, Mode, Recipient
from homing.core.plain_values import enum_member
from homing.core.ports.plug_ins import Directory
from homing.core.ports.stores import Entry, Registry
from homing.core.recipients.unsubscribe_links import LinkSealer, Subscription, SupportsUnsubscribe
from homing.engine.operations.policies import EVERY_TENANT
from homing.engine.recipient_directory import RegistryDirectory

_SECRET_KIND, _LINKS_KEY = "secret", "unsubscribe"

_PATH = "/unsubscribe/"


class UnsubscribeLinkSettings(Struct, frozen=True, kw_only=True):
    """Settings of unsubscribe links."""

    public_url: str = ""
    """URL at which recipients reach the service. If empty, emails get no link."""
    exempt_categories: Collection[str] = frozenset()
    """Categories that recipients cannot unsubscribe from, such as invoices and legal notices."""
    secret: str = ""
    """Secret that protects the links. If empty, a random one is created once and kept in the store."""


class UnsubscribeLinks:
    """Creates unsubscribe links for emails, and unsubscribes recipients who follow them.

    If a user-provided directory does not support unsubscribing, no links are created. If only the public URL
    is removed from the settings, links in sent emails stay valid.
    """

    def __init__(self, registry: Registry, directory: Directory, settings: UnsubscribeLinkSettings) -> None:
        self._registry = registry
        self._directory = directory if isinstance(directory, SupportsUnsubscribe) else None
        self._settings = settings
        self._base = settings.public_url.rstrip("/") + _PATH if settings.public_url else ""
        self._sealer: LinkSealer | None = LinkSealer(settings.secret.encode()) if settings.secret else None

    @property
    def offers(self) -> bool:
        """True if emails get unsubscribe links."""
        return bool(self._base) and self._directory is not None

    async def link(
        self,
        tenant: str,
        recipient: Recipient,
        address: str,
        channel: Channel | str,
        category: str,
        mode: Mode | str,
    ) -> str | None:
        """Returns the unsubscribe link for a message, or None if the message gets no link."""
        channel, mode = enum_member(Channel, channel, "channel"), enum_member(Mode, mode, "mode")
        if not self.offers or channel is not Channel.EMAIL or mode is Mode.SYNCHRONOUS:
            return None
        if category in self._settings.exempt_categories:
            return None
        by_address = None if recipient.id else address
        subscription = Subscription(tenant, channel, category, recipient.id, by_address)
        made = self._base + (await self._seal()).token(subscription)
        return made if len(made) <= MAX_HEADER_VALUE else None

    async def subscription(self, token: str) -> Subscription:
        """Returns the subscription that a link belongs to. Raises `LinkRefused` if the link is invalid."""
        found = (await self._seal()).opened(token)
        if found is None:
            raise LinkRefused
        return found

    async def changes(self, subscription: Subscription) -> bool:
        """Returns True if unsubscribing would change data in the store.

        Always False for a user-provided directory, which keeps its own data.
        """
        if not isinstance(self._directory, RegistryDirectory):
            return False
        return not await self._directory.is_unsubscribed(subscription)

    async def unsubscribe(self, token: str) -> Subscription:
        """Ends the subscription of a link and returns it. Repeating the call has no further effect."""
        found = await self.subscription(token)
        if self._directory is None:
            raise LinkRefused("unsubscribing is no longer possible: the directory does not support it")
        await self._directory.unsubscribe(found)
        return found

    async def _seal(self) -> LinkSealer:
        if self._sealer is None:
            self._sealer = LinkSealer((await self._secret()).encode())
        return self._sealer

    async def _secret(self) -> str:
        """Returns the secret from the store. Creates the secret if no process has created it yet."""
        while True:
            filed = await self._registry.get_many(EVERY_TENANT, _SECRET_KIND, [_LINKS_KEY])
            if _LINKS_KEY in filed:
                return str(filed[_LINKS_KEY].value["secret"])
            value = {"secret": secrets.token_urlsafe(32)}
            made = Entry(tenant=EVERY_TENANT, kind=_SECRET_KIND, key=_LINKS_KEY, value=value)
            await self._registry.put([made], who="homing")
