"""The default recipient directory, which reads recipients, preferences and suppressions from the store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec
from msgspec.structs import replace

from homing.core.errors import InvalidRequest
from homing.core.lifecycle.claims import Claim
from homing.core.lifecycle.effects import (
    DEVICE,
    EVERY_CATEGORY,
    EVERY_CHANNEL,
    PREFERENCE,
    SUPPRESSION,
    address_key,
    preference_key,
    suppression_key,
    suppression_keys,
)
from homing.core.notifications import Channel, Reason, Recipient
from homing.core.ports.stores import Registry
from homing.core.recipients.profiles import KnownRecipient, QuietWindow, read_window
from homing.core.recipients.quiet_hours import Window
from homing.core.recipients.registry_entries import RECIPIENT, devices_of, tokens_of
from homing.core.recipients.unsubscribe_links import Subscription
from homing.core.retry.decide import NO_OBJECTION, RecipientFacts
from homing.engine.operations.recipients import Recipients

_PUSH = Channel.PUSH

_LINK_AUTHOR = "recipient"
"""Author that is stored for a change which a recipient made through an unsubscribe link."""


_MAX_TENANTS = 100_000


EntryValues = Mapping[str, Mapping[str, Any]]
"""Registry key → stored value."""

RegistryKeys = tuple[str, ...]
"""Registry keys under which one claim may have an entry."""


class RegistryDirectory:
    """Reads recipients, devices, preferences and suppressions from the Registry, with a few reads per batch.

    - `recipient`, keyed by id: addresses, locale, time zone, quiet hours and device tokens.
    - `device`, keyed by token: `{"active": false}` means that the device is skipped.
    - `suppression`, keyed by channel, address and category. Category `*` stands for all categories.
    - `preference`, keyed by recipient id, category and channel: `{"allowed": false}` means unsubscribed.
      Category or channel `*` applies if there is no specific preference.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._with_suppressions: set[str] = set()
        """Tenants that are known to have suppressions."""

    async def resolve(self, tenant: str, ids: Collection[str]) -> Mapping[str, Recipient]:
        """Returns the known recipients by id, with their active devices."""
        found = await self._read(tenant, RECIPIENT, set(ids))
        tokens = {token for filed in found.values() for token in tokens_of(filed)}
        devices = await self._devices(tenant, tokens)
        return {id_: _recipient(id_, filed, devices) for id_, filed in found.items()}

    async def facts(self, claims: Sequence[Claim]) -> Mapping[str, RecipientFacts]:
        """Returns the facts that decide whether and when claims may be sent, by notification id."""
        by_tenant: dict[str, list[Claim]] = defaultdict(list)
        for claim in claims:
            by_tenant[claim.tenant].append(claim)
        found: dict[str, RecipientFacts] = {}
        for tenant, theirs in by_tenant.items():
            found.update(await self._tenant_facts(tenant, theirs))
        return found

    async def unsubscribe(self, subscription: Subscription) -> None:
        """Ends the subscription to one category.

        Stores a preference if the recipient has an id. Otherwise suppresses the address for the category.
        """
        recipients = Recipients(self._registry, subscription.tenant)
        channel, category = subscription.channel.value, subscription.category
        if subscription.recipient_id is not None:
            await recipients.prefer(
                subscription.recipient_id, category=category, channel=channel, allowed=False, who=_LINK_AUTHOR
            )
        elif subscription.address is not None:
            await recipients.suppress(
                channel, subscription.address, category=category, why="unsubscribed", who=_LINK_AUTHOR
            )

    async def is_unsubscribed(self, subscription: Subscription) -> bool:
        """Returns True if this subscription has already ended, so that `unsubscribe` would change nothing."""
        if subscription.recipient_id is not None:
            place = preference_key(
                subscription.recipient_id, subscription.category, subscription.channel.value
            )
            found = await self._read(subscription.tenant, PREFERENCE, {place})
            return found.get(place, {}).get("allowed") is False
        place = suppression_key(subscription.channel, subscription.address or "", subscription.category)
        return place in await self._read(subscription.tenant, SUPPRESSION, {place})

    async def _tenant_facts(self, tenant: str, claims: Sequence[Claim]) -> dict[str, RecipientFacts]:
        places, suppressed = await self._suppressed(tenant, claims)
        named = [claim for claim in claims if claim.message.recipient.id is not None]
        recipients = await self._read(tenant, RECIPIENT, {c.message.recipient.id or "" for c in named})
        devices = await self._devices(tenant, {c.address for c in claims if c.channel is _PUSH})
        preferences = await self._read(tenant, PREFERENCE, {k for c in named for k in _preference_keys(c)})
        if not (recipients or devices or suppressed or preferences):
            return {}
        found: dict[str, RecipientFacts] = {}
        for claim, keys in zip(claims, places, strict=True):
            facts = _time_facts(recipients.get(claim.message.recipient.id or "", {}))
            if suppressed and any(key in suppressed for key in keys):
                facts = replace(facts, skip=Reason.SUPPRESSED)
            elif _allowed(claim, preferences) is False:
                facts = replace(facts, skip=Reason.UNSUBSCRIBED)
            elif claim.channel is Channel.PUSH and devices.get(claim.address, {}).get("active") is False:
                facts = replace(facts, skip=Reason.DEVICE_INACTIVE)
            if facts is not NO_OBJECTION:
                found[claim.id] = facts
        return found

    async def _suppressed(
        self, tenant: str, claims: Sequence[Claim]
    ) -> tuple[Sequence[RegistryKeys], EntryValues]:
        """Returns the keys under which each claim may be suppressed, and the suppressions found there.

        Many tenants have no suppressions. For such a tenant, one cheap read replaces the lookup of all keys.
        """
        if tenant not in self._with_suppressions:
            if not await self._registry.list_entries(tenant, SUPPRESSION, limit=1):
                return [()] * len(claims), {}
            if len(self._with_suppressions) >= _MAX_TENANTS:
                self._with_suppressions.clear()
            self._with_suppressions.add(tenant)
        places = [suppression_keys(claim.channel, claim.address, claim.category) for claim in claims]
        return places, await self._read(tenant, SUPPRESSION, set(chain.from_iterable(places)))

    async def _devices(self, tenant: str, tokens: Collection[str]) -> EntryValues:
        """Returns the known devices by token."""
        known = await self._read(tenant, DEVICE, set(map(address_key, tokens)))
        return {token: one for token in tokens if (one := known.get(address_key(token)))}

    async def _read(self, tenant: str, kind: str, keys: set[str]) -> EntryValues:
        if not keys:
            return {}
        entries = await self._registry.get_many(tenant, kind, sorted(keys))
        return {key: entry.value for key, entry in entries.items()}


def _recipient(id_: str, filed: Mapping[str, Any], devices: EntryValues) -> Recipient:
    try:
        found = msgspec.convert({**filed, "id": id_}, KnownRecipient)
    except msgspec.ValidationError as error:
        raise InvalidRequest("recipient.id", f"{id_!r} has an invalid entry in the store: {error}") from None
    if found.device_token is not None:
        return found
    active = tuple(device.token for device in devices_of(id_, filed, devices) if device.active)
    return replace(found, device_tokens=active)


def _time_facts(filed: Mapping[str, Any]) -> RecipientFacts:
    """Returns the time zone and quiet hours from a recipient's entry, as facts."""
    zone, window = filed.get("timeZone"), _window(filed.get("quietHours"))
    if zone is None and window is None:
        return NO_OBJECTION
    return RecipientFacts(time_zone=zone if isinstance(zone, str) else None, quiet_hours=window)


def _window(stored: object) -> Window | None:
    """Returns the quiet hours of a recipient, or None if they are missing or invalid.

    If None is returned, the quiet hours of the settings apply.
    """
    if stored is None:
        return None
    try:
        return read_window(msgspec.convert(stored, QuietWindow), "quietHours")
    except (msgspec.ValidationError, InvalidRequest):
        return None


def _preference_keys(claim: Claim) -> tuple[str, ...]:
    """Returns the preference keys of a claim, most specific first. Category takes precedence over channel."""
    recipient_id = claim.message.recipient.id
    if recipient_id is None:
        return ()
    return tuple(
        preference_key(recipient_id, category, channel)
        for category in (claim.category, EVERY_CATEGORY)
        for channel in (claim.channel.value, EVERY_CHANNEL)
    )


def _allowed(claim: Claim, preferences: EntryValues) -> object:
    values = (preferences.get(key, {}).get("allowed") for key in _preference_keys(claim))
    return next((allowed for allowed in values if allowed is not None), None)
