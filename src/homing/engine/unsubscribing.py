"""Links by which a recipient leaves a category with one click, and what follows when they do."""

from __future__ import annotations

import secrets
from collections.abc import Collection

from msgspec import Struct

from homing.core.email import MAX_HEADER_VALUE
from homing.core.errors import LinkRefused
from homing.core.model import Channel, Entry, Mode, Recipient
from homing.core.ports import Directory, Registry
from homing.core.unsubscribe import Seal, Subscription, Unsubscribes
from homing.engine.directory import RegistryDirectory
from homing.engine.policies import EVERY_TENANT

_SECRET, _LINKS = "secret", "unsubscribe"
_PATH = "/unsubscribe/"


class LinkSettings(Struct, frozen=True, kw_only=True):
    """Which mails carry a link."""

    public_url: str = ""
    """Where recipients reach the service; empty: no mail gets a link."""
    exempt_categories: Collection[str] = frozenset()
    """Nobody can leave these: receipts, alarms, what the law or the contract wants told."""
    secret: str = ""
    """What links are sealed with; empty: one that is made once and kept in the store."""


class Unsubscribing:
    """Makes links for mails, and does what a link says.

    Links that were sent go on working, also when no new ones are made. With a directory of one's own that
    does not take unsubscribes there are none: nothing would come of a click.
    """

    def __init__(self, registry: Registry, directory: Directory, settings: LinkSettings) -> None:
        self._registry = registry
        self._directory = directory if isinstance(directory, Unsubscribes) else None
        self._settings = settings
        self._base = settings.public_url.rstrip("/") + _PATH if settings.public_url else ""
        self._known: Seal | None = Seal(settings.secret.encode()) if settings.secret else None

    @property
    def offers(self) -> bool:
        """Whether any mail gets a link."""
        return bool(self._base) and self._directory is not None

    async def link(
        self, tenant: str, recipient: Recipient, address: str, channel: Channel, category: str, mode: Mode
    ) -> str | None:
        """The link for a mail; None: it goes without one."""
        if not self.offers or channel is not Channel.EMAIL or mode is Mode.SYNCHRONOUS:
            return None
        if category in self._settings.exempt_categories:
            return None
        by_address = None if recipient.id else address
        subscription = Subscription(tenant, channel, category, recipient.id, by_address)
        made = self._base + (await self._seal()).token(subscription)
        return made if len(made) <= MAX_HEADER_VALUE else None

    async def subscription(self, token: str) -> Subscription:
        """What a link is about, or `LinkRefused`."""
        found = (await self._seal()).opened(token)
        if found is None:
            raise LinkRefused
        return found

    async def changes(self, subscription: Subscription) -> bool:
        """Whether a click would change what is filed here; a directory of one's own files it for itself."""
        if not isinstance(self._directory, RegistryDirectory):
            return False
        return not await self._directory.has_left(subscription)

    async def unsubscribe(self, token: str) -> Subscription:
        """Does what the link says; as often as it is asked, with the same end."""
        found = await self.subscription(token)
        if self._directory is None:
            raise LinkRefused("unsubscribing is not possible here any more")
        await self._directory.unsubscribe(found)
        return found

    async def _seal(self) -> Seal:
        if self._known is None:
            self._known = Seal((await self._secret()).encode())
        return self._known

    async def _secret(self) -> str:
        """From the store; whoever comes first makes it, and all others take that one."""
        while True:
            filed = await self._registry.get_many(EVERY_TENANT, _SECRET, [_LINKS])
            if _LINKS in filed:
                return str(filed[_LINKS].value["secret"])
            value = {"secret": secrets.token_urlsafe(32)}
            made = Entry(tenant=EVERY_TENANT, kind=_SECRET, key=_LINKS, value=value)
            await self._registry.put([made], who="homing")
