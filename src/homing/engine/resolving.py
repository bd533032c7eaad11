"""Whom a request reaches: what the directory knows of its recipients, and all their devices."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from homing.core.errors import HomingError, StoreUnavailable
from homing.core.model import Channel, Mode, Recipient
from homing.core.policy import MODES
from homing.core.ports import Directory
from homing.core.recipients import KnownRecipient

SYNCHRONOUS_TIMEOUT_MS = MODES[Mode.SYNCHRONOUS]["timeout_ms"]
"""Hard, for the whole call, whatever a rule says about attempts elsewhere."""
MOST_DEVICES = 10
"""Of one recipient that a push message goes to: those that the directory names first."""

_HOOK_MS = 10_000

Devices = Mapping[str, tuple[str, ...]]
"""Recipient id → tokens, of those with several devices."""

NO_DEVICES: Devices = {}


class Resolving:
    """Asks the directory once for all recipients of a request."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    async def resolve(
        self, tenant: str, recipients: tuple[Recipient, ...], mode: Mode
    ) -> tuple[tuple[Recipient, ...], Devices]:
        """Fills in what the directory knows; what the request says wins.

        Who is named by id and not by a token is reached on every active device; a synchronous send, which
        is one attempt, on the first.
        """
        ids = {recipient.id for recipient in recipients if recipient.id}
        if not ids:
            return recipients, NO_DEVICES
        synchronous = mode is Mode.SYNCHRONOUS
        known = await self._known(tenant, ids, SYNCHRONOUS_TIMEOUT_MS if synchronous else _HOOK_MS)
        resolved = tuple(_merged(known[r.id], r) if r.id and r.id in known else r for r in recipients)
        if synchronous:
            return resolved, NO_DEVICES
        devices = {
            given.id: one.device_tokens[:MOST_DEVICES]
            for given in recipients
            if given.id
            and given.device_token is None
            and isinstance(one := known.get(given.id), KnownRecipient)
            and len(one.device_tokens) > 1
        }
        return resolved, devices

    async def _known(self, tenant: str, ids: Collection[str], within_ms: int) -> Mapping[str, Recipient]:
        """The directory may be a user's service: it may hang, fail, or answer nonsense."""
        try:
            async with asyncio.timeout(within_ms / 1000):
                known: object = await self._directory.resolve(tenant, ids)
        except HomingError:
            raise
        except Exception as error:
            kind = type(error).__name__
            raise StoreUnavailable(f"the recipient directory does not answer ({kind}); try again") from error
        if isinstance(known, Mapping) and all(isinstance(one, Recipient) for one in known.values()):
            return known
        raise StoreUnavailable(f"the recipient directory answered with {type(known).__name__}; try again")


def reached(recipient: Recipient, channel: Channel, devices: Devices) -> Sequence[Recipient]:
    """The recipient once, or once for each of their devices."""
    tokens = devices.get(recipient.id or "", ()) if channel is Channel.PUSH else ()
    return [replace(recipient, device_token=token) for token in tokens] or (recipient,)


def _merged(known: Recipient, given: Recipient) -> Recipient:
    """A plain recipient: what a notification keeps has one device at most."""
    found = {name: getattr(known, name) for name in Recipient.__struct_fields__}
    if isinstance(known, KnownRecipient) and known.device_tokens:
        found["device_token"] = known.device_tokens[0]
    said = {name: value for name in found if (value := getattr(given, name)) is not None}
    return Recipient(**{**found, **said})
