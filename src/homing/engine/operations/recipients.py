"""Reads and writes recipient profiles and devices, preferences, and suppressions of addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from msgspec.structs import replace

from homing.core.content.locales import LocalePolicy
from homing.core.errors import InvalidRequest, NotFound, VersionConflict
from homing.core.lifecycle.effects import (
    DEVICE,
    EVERY_CATEGORY,
    PREFERENCE,
    SUPPRESSION,
    address_key,
    key_part,
    preference_key,
    suppression_key,
)
from homing.core.notifications import Channel
from homing.core.plain_values import check_line
from homing.core.ports.stores import Entry, Registry
from homing.core.recipients.profiles import (
    Device,
    Preference,
    RecipientProfile,
    Suppression,
    check_category,
    check_id,
    normalize_address,
    read_channel,
    read_profile,
)
from homing.core.recipients.registry_entries import (
    RECIPIENT,
    decode_preference,
    decode_profile,
    decode_suppression,
    encode_device,
    encode_profile,
    tokens_of,
)
from homing.engine.system_runtime import is_zone

_PAGE = 500

_ANY_VERSION = -1

_MAX_WHY_CHARS = 500


class Recipients:
    """Recipient data of one tenant in the store. Every write names its author, `who`."""

    def __init__(self, registry: Registry, tenant: str, locales: LocalePolicy | None = None) -> None:
        """Creates the operations. If `locales` is None, recipients may have any locale."""
        self._registry = registry
        self._tenant = tenant
        self._locales = locales

    def of(self, tenant: str) -> Recipients:
        """Returns the recipients of another tenant."""
        return Recipients(self._registry, tenant, self._locales)

    # Profiles ------------------------------------------------------------------------------------

    async def put(self, recipient: RecipientProfile | Mapping[str, Any], *, who: str) -> RecipientProfile:
        """Creates or replaces a recipient, including devices, and returns it with its new version.

        If the recipient's `version` is set, raises `VersionConflict` unless it is the stored version.
        Otherwise replaces any version. Raises `InvalidRequest` if the recipient has a locale in which no
        message could be sent, where the settings reject such requests.
        """
        profile = read_profile(recipient, is_zone)
        if profile.locale and self._locales is not None:
            self._locales.check_preference(profile.locale)
        _check_who(who)
        while True:
            before = (await self._read(RECIPIENT, [profile.id])).get(profile.id)
            if profile.version and (before is None or before.version != profile.version):
                raise VersionConflict(f"recipient {profile.id!r} is no longer at version {profile.version}")
            entries = await self._entries(profile, before.version if before else 0)
            if await self._registry.put(entries, who=who) is not None:
                break  # else an entry changed meanwhile, such as a device that became inactive: try again
        kept = {device.token for device in profile.devices}
        await self._delete_devices(
            profile.id, [token for token in tokens_of(_value(before)) if token not in kept]
        )
        return await self.get(profile.id)

    async def get(self, id: str) -> RecipientProfile:
        """Returns one recipient. Raises `NotFound` if no recipient has that id."""
        check_id(id)
        entry = (await self._read(RECIPIENT, [id])).get(id)
        if entry is None:
            raise NotFound(f"there is no recipient {id!r} for tenant {self._tenant!r}")
        return (await self._profiles([entry]))[0]

    async def list(self, *, after: str = "", limit: int = 100) -> tuple[RecipientProfile, ...]:
        """Returns recipients ordered by id. `after` is the last id of the previous page."""
        check_line(after, "after")
        entries = await self._registry.list_entries(self._tenant, RECIPIENT, after=after, limit=_limit(limit))
        return tuple(await self._profiles(entries))

    async def delete(self, id: str) -> bool:
        """Deletes a recipient with devices and preferences. Returns False if nothing was stored.

        Suppressions belong to addresses, so they are kept.
        """
        check_id(id)
        entry = (await self._read(RECIPIENT, [id])).get(id)
        await self._delete_devices(id, tokens_of(_value(entry)))
        preferences = [one.key for one in await self._all(PREFERENCE, f"{key_part(id)}:")]
        removed = await self._registry.delete(self._tenant, PREFERENCE, preferences)
        return bool(await self._registry.delete(self._tenant, RECIPIENT, [id])) or removed > 0

    async def put_device(
        self, id: str, token: str, *, platform: str = "", active: bool = True, who: str
    ) -> RecipientProfile:
        """Adds or updates a device, and makes it the recipient's first device."""
        token = token.strip()
        while True:
            found = await self.get(id)
            others = tuple(replace(one, active=None) for one in found.devices if one.token != token)
            device = Device(token, platform, active)
            try:
                return await self.put(replace(found, devices=(device, *others)), who=who)
            except VersionConflict:  # the recipient was changed at the same time: try again
                continue

    async def delete_device(self, id: str, token: str, *, who: str) -> bool:
        """Deletes one device. Returns False if the recipient does not have it."""
        token = token.strip()
        while True:
            found = await self.get(id)
            others = tuple(replace(one, active=None) for one in found.devices if one.token != token)
            if len(others) == len(found.devices):
                return False
            try:
                await self.put(replace(found, devices=others), who=who)
            except VersionConflict:  # the recipient was changed at the same time: try again
                continue
            return True

    # Preferences ---------------------------------------------------------------------------------

    async def prefer(
        self, id: str, *, category: str = EVERY_CATEGORY, channel: str = "*", allowed: bool, who: str
    ) -> None:
        """Sets whether a recipient wants a category on a channel.

        Category or channel `*` applies if there is no specific preference. No profile has to exist, because
        preferences are looked up by the recipient id of a message.
        """
        if not isinstance(allowed, bool):
            raise InvalidRequest("allowed", f"is {allowed!r}; it must be true or false")
        key = self._preference_key(id, category, channel)
        _check_who(who)
        await self._registry.put([self._entry(PREFERENCE, key, {"allowed": allowed})], who=who)

    async def forget_preference(self, id: str, *, category: str = EVERY_CATEGORY, channel: str = "*") -> bool:
        """Deletes a preference. Returns False if there was none."""
        key = self._preference_key(id, category, channel)
        return bool(await self._registry.delete(self._tenant, PREFERENCE, [key]))

    async def preferences(self, id: str) -> tuple[Preference, ...]:
        """Returns all preferences of one recipient."""
        check_id(id)
        return tuple(decode_preference(entry) for entry in await self._all(PREFERENCE, f"{key_part(id)}:"))

    # Suppressions --------------------------------------------------------------------------------

    async def suppress(
        self, channel: str, address: str, *, category: str = EVERY_CATEGORY, why: str = "", who: str
    ) -> Suppression:
        """Suppresses an address on a channel: messages of this category are no longer sent to it.

        Category `*` stands for all categories.
        """
        on, address = self._place(channel, address)
        check_category(category)
        check_line(why, "why")
        if len(why) > _MAX_WHY_CHARS:
            raise InvalidRequest("why", f"has {len(why)} characters; at most {_MAX_WHY_CHARS} are allowed")
        _check_who(who)
        value = {"channel": on.value, "address": address, "category": category, "why": why}
        entry = self._entry(SUPPRESSION, suppression_key(on, address, category), value)
        written = await self._registry.put([entry], who=who)
        assert written is not None, "a write without a version never conflicts"
        return decode_suppression(written[0])

    async def lift(self, channel: str, address: str, *, category: str = EVERY_CATEGORY) -> bool:
        """Deletes one suppression. Returns False if there was none.

        Suppressions of `*` and of a single category are separate: deleting one keeps the other.
        """
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
        """Returns suppressions ordered by `place`: all of them, or those of one channel or one address.

        `after` is the `place` of the last suppression of the previous page.
        """
        check_line(after, "after")
        prefix = ""
        if address is not None and channel is None:
            raise InvalidRequest("channel", "is missing; give the channel of the address")
        if channel is not None:
            prefix = f"{read_channel(channel)}:"
        if channel is not None and address is not None:
            on, address = self._place(channel, address)
            found = [
                decode_suppression(one)
                for one in await self._all(SUPPRESSION, f"{on.value}:{address_key(address)}:")
            ]
            # Compare the address: the key prefix of address `a` also matches keys of address `a:b`.
            matching = (one for one in found if one.address == address and one.place > after)
            return tuple(islice(matching, _limit(limit)))
        entries = await self._registry.list_entries(
            self._tenant, SUPPRESSION, prefix=prefix, after=after, limit=_limit(limit)
        )
        return tuple(map(decode_suppression, entries))

    # The Registry --------------------------------------------------------------------------------

    async def _entries(self, profile: RecipientProfile, version: int) -> Sequence[Entry]:
        """Returns the entries of a recipient and its devices, with the stored versions that they replace."""
        known = await self._devices([device.token for device in profile.devices])
        devices = [(device, known.get(device.token)) for device in profile.devices]
        return [
            self._entry(RECIPIENT, profile.id, encode_profile(profile), version),
            *(
                self._entry(
                    DEVICE,
                    address_key(device.token),
                    encode_device(device, profile.id, _value(one)),
                    one.version if one else 0,
                )
                for device, one in devices
            ),
        ]

    async def _profiles(self, entries: Sequence[Entry]) -> Sequence[RecipientProfile]:
        tokens = {token for entry in entries for token in tokens_of(entry.value)}
        devices = {token: one.value for token, one in (await self._devices(sorted(tokens))).items()}
        return [decode_profile(entry, devices) for entry in entries]

    async def _delete_devices(self, id: str, tokens: Sequence[str]) -> None:
        """Deletes devices that still belong to this recipient.

        Skips a device on which another user has signed in since.
        """
        known = await self._devices(tokens)
        theirs = [one.key for one in known.values() if one.value.get("recipientId", id) == id]
        if theirs:
            await self._registry.delete(self._tenant, DEVICE, theirs)

    async def _devices(self, tokens: Sequence[str]) -> dict[str, Entry]:
        """Returns the entries of known devices by token."""
        filed = await self._read(DEVICE, [address_key(token) for token in tokens])
        return {token: one for token in tokens if (one := filed.get(address_key(token)))}

    async def _read(self, kind: str, keys: Sequence[str]) -> dict[str, Entry]:
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

    def _entry(self, kind: str, key: str, value: dict[str, Any], version: int = _ANY_VERSION) -> Entry:
        return Entry(tenant=self._tenant, kind=kind, key=key, value=value, version=version)

    def _preference_key(self, id: str, category: str, channel: str) -> str:
        check_id(id)
        return preference_key(id, check_category(category), read_channel(channel, or_all=True))

    def _place(self, channel: str, address: str) -> tuple[Channel, str]:
        on = Channel(read_channel(channel))
        return on, normalize_address(on, address)


def _value(entry: Entry | None) -> dict[str, Any]:
    return entry.value if entry else {}


def _check_who(who: Any) -> None:
    if not isinstance(who, str) or not who.strip():
        raise InvalidRequest("who", "is empty; give the name of the author")
    check_line(who, "who")


def _limit(limit: int) -> int:
    if not 1 <= limit <= 1000:
        raise InvalidRequest("limit", f"is {limit}; it must be between 1 and 1000")
    return limit
