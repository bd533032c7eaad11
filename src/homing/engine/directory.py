"""The recipient directory that reads the store's own reference data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from homing.core.decide import Facts
from homing.core.effects import (
    DEVICE,
    EVERY_CATEGORY,
    PREFERENCE,
    SUPPRESSION,
    preference_key,
    suppression_key,
)
from homing.core.errors import InvalidRequest
from homing.core.model import Channel, Claim, Reason, Recipient
from homing.core.ports import Registry

RECIPIENT = "recipient"


class RegistryDirectory:
    """Recipients, devices, preferences and suppressions from the Registry, a few reads per batch.

    - `recipient` by id: addresses, locale, time zone.
    - `device` by token: `{"active": false}` skips it.
    - `suppression` by channel, address and category (`*`: all of them).
    - `preference` by recipient id, category (else `*`) and channel: `{"allowed": false}`.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def resolve(self, tenant: str, ids: Collection[str]) -> Mapping[str, Recipient]:
        found = await self._registry.get_many(tenant, RECIPIENT, ids)
        return {id_: _recipient(id_, entry.value) for id_, entry in found.items()}

    async def facts(self, claims: Sequence[Claim]) -> Mapping[str, Facts]:
        by_tenant: dict[str, list[Claim]] = defaultdict(list)
        for claim in claims:
            by_tenant[claim.tenant].append(claim)
        found: dict[str, Facts] = {}
        for tenant, theirs in by_tenant.items():
            found.update(await self._tenant_facts(tenant, theirs))
        return found

    async def _tenant_facts(self, tenant: str, claims: Sequence[Claim]) -> dict[str, Facts]:
        devices = await self._known(tenant, DEVICE, {c.address for c in claims if c.channel is Channel.PUSH})
        suppressed = await self._known(tenant, SUPPRESSION, {k for c in claims for k in _suppressions(c)})
        preferences = await self._known(tenant, PREFERENCE, {k for c in claims for k in _preferences(c)})
        found: dict[str, Facts] = {}
        for claim in claims:
            if any(key in suppressed for key in _suppressions(claim)):
                found[claim.id] = Facts(skip=Reason.SUPPRESSED)
            elif _allowed(claim, preferences) is False:
                found[claim.id] = Facts(skip=Reason.UNSUBSCRIBED)
            elif claim.channel is Channel.PUSH and devices.get(claim.address, {}).get("active") is False:
                found[claim.id] = Facts(skip=Reason.DEVICE_INACTIVE)
        return found

    async def _known(self, tenant: str, kind: str, keys: set[str]) -> dict[str, dict[str, object]]:
        if not keys:
            return {}
        entries = await self._registry.get_many(tenant, kind, sorted(keys))
        return {key: entry.value for key, entry in entries.items()}


def _recipient(id_: str, filed: dict[str, Any]) -> Recipient:
    try:
        return msgspec.convert({**filed, "id": id_}, Recipient)
    except msgspec.ValidationError as error:
        raise InvalidRequest("recipient.id", f"{id_!r} is filed wrongly: {error}") from None


def _preferences(claim: Claim) -> tuple[str, ...]:
    """Where to look, the most specific first."""
    recipient_id = claim.message.recipient.id
    if recipient_id is None:
        return ()
    categories = (claim.category, EVERY_CATEGORY)
    return tuple(preference_key(recipient_id, category, claim.channel) for category in categories)


def _allowed(claim: Claim, preferences: Mapping[str, Mapping[str, object]]) -> object:
    said = (preferences.get(key, {}).get("allowed") for key in _preferences(claim))
    return next((allowed for allowed in said if allowed is not None), None)


def _suppressions(claim: Claim) -> tuple[str, str]:
    return (
        suppression_key(claim.channel, claim.address, EVERY_CATEGORY),
        suppression_key(claim.channel, claim.address, claim.category),
    )
