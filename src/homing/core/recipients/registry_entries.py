"""Encodes and decodes the registry entries of recipients, devices, preferences and suppressions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from homing.core.errors import InvalidRequest
from homing.core.lifecycle.effects import unescape_key_part
from homing.core.notifications import Channel
from homing.core.ports.stores import Entry
from homing.core.recipients.profiles import Device, Preference, RecipientProfile, Suppression
from homing.core.times import moment

RECIPIENT = "recipient"

_PROFILE_FIELDS = ("email", "phone", "url", "locale", "timeZone", "quietHours")
"""Fields stored in a recipient's entry under their own names. Devices have separate entries."""


def encode_profile(profile: RecipientProfile) -> dict[str, Any]:
    """Encodes a recipient's entry: the profile's fields, and the tokens of the devices."""
    fields = msgspec.to_builtins(profile)
    return {
        **{name: fields[name] for name in _PROFILE_FIELDS if name in fields},
        "devices": [d.token for d in profile.devices],
    }


def tokens_of(filed: Mapping[str, Any]) -> list[str]:
    """Returns the device tokens of a recipient's entry, in their order."""
    tokens = filed.get("devices", ())
    return [one for one in tokens if isinstance(one, str)] if isinstance(tokens, (list, tuple)) else []


def encode_device(device: Device, recipient_id: str, known: Mapping[str, Any] | None) -> dict[str, Any]:
    """Encodes a device's entry. Fields that the device leaves out keep their values in the entry `known`."""
    before = dict(known or {})
    active = before.get("active", True) if device.active is None else device.active
    if active:
        before.pop("why", None)
    platform = device.platform or before.get("platform", "")
    return {
        **before,
        "token": device.token,
        "recipientId": recipient_id,
        "platform": platform,
        "active": active,
    }


def devices_of(
    id: str, filed: Mapping[str, Any], known: Mapping[str, Mapping[str, Any]]
) -> tuple[Device, ...]:
    """Returns a recipient's devices, without those that now belong to another recipient.

    `known` has the entries of the devices by token.
    """
    return tuple(
        Device(token, str(one.get("platform", "")), one.get("active") is not False)
        for token in tokens_of(filed)
        if (one := known.get(token, {})).get("recipientId", id) == id
    )


def decode_profile(entry: Entry, known: Mapping[str, Mapping[str, Any]]) -> RecipientProfile:
    """Decodes a recipient's entry. `known` has the entries of the devices by token."""
    fields = {name: entry.value[name] for name in _PROFILE_FIELDS if name in entry.value}
    try:
        found = msgspec.convert({**fields, "id": entry.key}, RecipientProfile)
    except msgspec.ValidationError as error:
        raise InvalidRequest(
            "recipient.id", f"{entry.key!r} has an invalid stored profile: {error}"
        ) from None
    return replace(
        found,
        devices=devices_of(entry.key, entry.value, known),
        version=entry.version,
        updated_at=moment(entry.updated_at),
        updated_by=entry.updated_by,
    )


def decode_preference(entry: Entry) -> Preference:
    """Decodes a preference's entry. Its key contains the recipient, category and channel."""
    id, category, channel = (unescape_key_part(part) for part in entry.key.split(":"))
    return Preference(
        recipient_id=id,
        category=category,
        channel=channel,
        allowed=entry.value.get("allowed") is not False,
        updated_at=moment(entry.updated_at),
        updated_by=entry.updated_by,
    )


def decode_suppression(entry: Entry) -> Suppression:
    """Decodes a suppression's entry. Its key contains the channel, address and category."""
    channel, _, rest = entry.key.partition(":")
    address, _, category = rest.rpartition(":")
    return Suppression(
        channel=Channel(channel),
        address=str(entry.value.get("address", address)),
        category=unescape_key_part(category),
        why=str(entry.value.get("why", "")),
        updated_at=moment(entry.updated_at),
        updated_by=entry.updated_by,
    )
