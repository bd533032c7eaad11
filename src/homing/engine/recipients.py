"""Recipients as an application writes and reads them: profiles with devices, preferences, suppressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from msgspec.structs import replace

from homing.core.effects import (
    DEVICE,
    EVERY_CATEGORY,
    PREFERENCE,
    SUPPRESSION,
    address_key,
    key_part,
    preference_key,
    suppression_key,
)
from homing.core.errors import InvalidRequest, NotFound, VersionConflict
from homing.core.model import Channel, Entry
from homing.core.ports import Registry
from homing.core.recipient_entries import (
    RECIPIENT,
    filed_device,
    filed_profile,
    preference_of,
    profile_of,
    suppression_of,
    tokens_of,
)
from homing.core.recipients import (
    Device,
    Preference,
    RecipientProfile,
    Suppression,
    address_on,
    channel_from,
    check_category,
    check_id,
    profile_from,
)
from homing.core.text import check_line
from homing.engine.zones import is_zone

_PAGE = 500
_ANY = -1
_LONGEST_WHY = 500


class Recipients:
    """The reference data that the store keeps of one tenant's recipients. Every write says `who`."""

    def __init__(self, registry: Registry, tenant: str) -> None:
        self._registry = registry
        self._tenant = tenant

    def of(self, tenant: str) -> Recipients:
        """Those of another tenant."""
        return Recipients(self._registry, tenant)

    # Profiles ------------------------------------------------------------------------------------

    async def put(self, recipient: RecipientProfile | Mapping[str, Any], *, who: str) -> RecipientProfile:
        """Writes a recipient whole, devices included; as written, with its new version.

        With a `version`, only over that version (else `VersionConflict`); without, over whatever is there.
        """
        profile = profile_from(recipient, is_zone)
        _check_who(who)
        while True:
            before = (await self._filed(RECIPIENT, [profile.id])).get(profile.id)
            if profile.version and (before is None or before.version != profile.version):
                raise VersionConflict(f"recipient {profile.id!r} is no longer at version {profile.version}")
            entries = await self._entries(profile, before.version if before else 0)
            if await self._registry.put(entries, who=who) is not None:
                break  # else something was written meanwhile, such as that a token is dead: once more
        kept = {device.token for device in profile.devices}
        await self._forget(profile.id, [token for token in tokens_of(_value(before)) if token not in kept])
        return await self.get(profile.id)

    async def get(self, id: str) -> RecipientProfile:
        """One recipient, or `NotFound`."""
        check_id(id)
        entry = (await self._filed(RECIPIENT, [id])).get(id)
        if entry is None:
            raise NotFound(f"there is no recipient {id!r} for tenant {self._tenant!r}")
        return (await self._profiles([entry]))[0]

    async def list(self, *, after: str = "", limit: int = 100) -> tuple[RecipientProfile, ...]:
        """By id; `after` the last one of the page before."""
        check_line(after, "after")
        entries = await self._registry.list_entries(self._tenant, RECIPIENT, after=after, limit=_limit(limit))
        return tuple(await self._profiles(entries))

    async def delete(self, id: str) -> bool:
        """Removes a recipient, their devices and preferences. Suppressions are of addresses: they stay."""
        check_id(id)
        entry = (await self._filed(RECIPIENT, [id])).get(id)
        await self._forget(id, tokens_of(_value(entry)))
        preferences = [one.key for one in await self._all(PREFERENCE, f"{key_part(id)}:")]
        removed = await self._registry.delete(self._tenant, PREFERENCE, preferences)
        return bool(await self._registry.delete(self._tenant, RECIPIENT, [id])) or removed > 0

    async def put_device(
        self, id: str, token: str, *, platform: str = "", active: bool = True, who: str
    ) -> RecipientProfile:
        """Adds a device as the first one, or says anew whether a known one is active."""
        token = token.strip()
        while True:
            found = await self.get(id)
            others = tuple(replace(one, active=None) for one in found.devices if one.token != token)
            device = Device(token, platform, active)
            try:
                return await self.put(replace(found, devices=(device, *others)), who=who)
            except VersionConflict:  # somebody else added theirs: once more, on top of it
                continue

    async def delete_device(self, id: str, token: str, *, who: str) -> bool:
        """Removes one device; False: the recipient has no such one."""
        token = token.strip()
        while True:
            found = await self.get(id)
            others = tuple(replace(one, active=None) for one in found.devices if one.token != token)
            if len(others) == len(found.devices):
                return False
            try:
                await self.put(replace(found, devices=others), who=who)
            except VersionConflict:  # somebody else changed another one: once more, without this one
                continue
            return True

    # Preferences ---------------------------------------------------------------------------------

    async def prefer(
        self, id: str, *, category: str = EVERY_CATEGORY, channel: str = "*", allowed: bool, who: str
    ) -> None:
        """Says whether they want a category on a channel. `*` holds where nothing is said of the one itself.

        The recipient need not be filed: preferences are found by the id that a message names.
        """
        if not isinstance(allowed, bool):
            raise InvalidRequest("allowed", f"is {allowed!r}; give true or false")
        key = self._preference_key(id, category, channel)
        _check_who(who)
        await self._registry.put([self._entry(PREFERENCE, key, {"allowed": allowed})], who=who)

    async def forget_preference(self, id: str, *, category: str = EVERY_CATEGORY, channel: str = "*") -> bool:
        """Takes back what was said; False: nothing was."""
        key = self._preference_key(id, category, channel)
        return bool(await self._registry.delete(self._tenant, PREFERENCE, [key]))

    async def preferences(self, id: str) -> tuple[Preference, ...]:
        """All that one recipient has said."""
        check_id(id)
        return tuple(preference_of(entry) for entry in await self._all(PREFERENCE, f"{key_part(id)}:"))

    # Suppressions --------------------------------------------------------------------------------

    async def suppress(
        self, channel: str, address: str, *, category: str = EVERY_CATEGORY, why: str = "", who: str
    ) -> Suppression:
        """Nothing of this category goes to that address on that channel any more; `*`: nothing at all."""
        on, address = self._place(channel, address)
        check_category(category)
        check_line(why, "why")
        if len(why) > _LONGEST_WHY:
            raise InvalidRequest("why", f"has {len(why)} characters; allowed are {_LONGEST_WHY}")
        _check_who(who)
        value = {"channel": on.value, "address": address, "category": category, "why": why}
        entry = self._entry(SUPPRESSION, suppression_key(on, address, category), value)
        written = await self._registry.put([entry], who=who)
        assert written is not None, "a write over whatever is there cannot come too late"
        return suppression_of(written[0])

    async def lift(self, channel: str, address: str, *, category: str = EVERY_CATEGORY) -> bool:
        """Takes one suppression back; False: there was none. One for `*` and one for a category are two."""
        on, address = self._place(channel, address)
        key = suppression_key(on, address, check_category(category))
        return bool(await self._registry.delete(self._tenant, SUPPRESSION, [key]))

    async def suppressions(
        self,
        channel: str | None = None,
        address: str | None = None,
        *,
        after: str = "",
        limit: int = 100,
    ) -> tuple[Suppression, ...]:
        """By channel and address; all of them, those of a channel, or those of one address.

        `after` is the `place` of the last one of the page before.
        """
        check_line(after, "after")
        prefix = ""
        if address is not None and channel is None:
            raise InvalidRequest("channel", "is missing; an address is one on a channel")
        if channel is not None:
            prefix = f"{channel_from(channel)}:"
        if channel is not None and address is not None:
            on, address = self._place(channel, address)
            found = [
                suppression_of(one)
                for one in await self._all(SUPPRESSION, f"{on.value}:{address_key(address)}:")
            ]
            theirs = (one for one in found if one.address == address and one.place > after)
            return tuple(islice(theirs, _limit(limit)))  # `a:` also begins what is filed of `a:b`
        entries = await self._registry.list_entries(
            self._tenant, SUPPRESSION, prefix=prefix, after=after, limit=_limit(limit)
        )
        return tuple(map(suppression_of, entries))

    # The Registry --------------------------------------------------------------------------------

    async def _entries(self, profile: RecipientProfile, version: int) -> Sequence[Entry]:
        """A recipient's entry and those of the devices, each over the version that is there now."""
        known = await self._devices([device.token for device in profile.devices])
        devices = [(device, known.get(device.token)) for device in profile.devices]
        return [
            self._entry(RECIPIENT, profile.id, filed_profile(profile), version),
            *(
                self._entry(
                    DEVICE,
                    address_key(device.token),
                    filed_device(device, profile.id, _value(one)),
                    one.version if one else 0,
                )
                for device, one in devices
            ),
        ]

    async def _profiles(self, entries: Sequence[Entry]) -> Sequence[RecipientProfile]:
        tokens = {token for entry in entries for token in tokens_of(entry.value)}
        devices = {token: one.value for token, one in (await self._devices(sorted(tokens))).items()}
        return [profile_of(entry, devices) for entry in entries]

    async def _forget(self, id: str, tokens: Sequence[str]) -> None:
        """Removes devices that are still this recipient's: somebody else may have signed in there since."""
        known = await self._devices(tokens)
        theirs = [one.key for one in known.values() if one.value.get("recipientId", id) == id]
        if theirs:
            await self._registry.delete(self._tenant, DEVICE, theirs)

    async def _devices(self, tokens: Sequence[str]) -> dict[str, Entry]:
        """By token."""
        filed = await self._filed(DEVICE, [address_key(token) for token in tokens])
        return {token: one for token in tokens if (one := filed.get(address_key(token)))}

    async def _filed(self, kind: str, keys: Sequence[str]) -> dict[str, Entry]:
        return await self._registry.get_many(self._tenant, kind, keys) if keys else {}

    async def _all(self, kind: str, prefix: str) -> Sequence[Entry]:
        found: list[Entry] = []
        while True:
            after = found[-1].key if found else ""
            page = await self._registry.list_entries(
                self._tenant, kind, prefix=prefix, after=after, limit=_PAGE
            )
            found.extend(page)
            if len(page) < _PAGE:
                return found

    def _entry(self, kind: str, key: str, value: dict[str, Any], version: int = _ANY) -> Entry:
        return Entry(tenant=self._tenant, kind=kind, key=key, value=value, version=version)

    def _preference_key(self, id: str, category: str, channel: str) -> str:
        check_id(id)
        return preference_key(id, check_category(category), channel_from(channel, or_all=True))

    def _place(self, channel: str, address: str) -> tuple[Channel, str]:
        on = Channel(channel_from(channel))
        return on, address_on(on, address)


def _value(entry: Entry | None) -> dict[str, Any]:
    return entry.value if entry else {}


def _check_who(who: Any) -> None:
    if not isinstance(who, str) or not who.strip():
        raise InvalidRequest("who", "is empty; say who writes this")
    check_line(who, "who")


def _limit(limit: int) -> int:
    if not 1 <= limit <= 1000:
        raise InvalidRequest("limit", f"is {limit}; allowed are 1 to 1000")
    return limit
