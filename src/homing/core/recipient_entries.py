"""Recipients, devices, preferences and suppressions as entries of the reference data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from homing.core.effects import part_text
from homing.core.errors import InvalidRequest
from homing.core.events import moment
from homing.core.model import Channel, Entry
from homing.core.recipients import Device, Preference, RecipientProfile, Suppression

RECIPIENT = "recipient"
_KEPT = ("email", "phone", "url", "locale", "timeZone", "quietHours")
"""What a recipient's own entry has under its name; its devices are entries of their own."""


def filed_profile(profile: RecipientProfile) -> dict[str, Any]:
    """The value of a recipient's entry: what was said, and the tokens of the devices."""
    said = msgspec.to_builtins(profile)
    return {
        **{name: said[name] for name in _KEPT if name in said},
        "devices": [d.token for d in profile.devices],
    }


def tokens_of(filed: Mapping[str, Any]) -> list[str]:
    """The tokens of a recipient's devices, in their order."""
    tokens = filed.get("devices", ())
    return [one for one in tokens if isinstance(one, str)] if isinstance(tokens, (list, tuple)) else []


def filed_device(device: Device, recipient_id: str, known: Mapping[str, Any] | None) -> dict[str, Any]:
    """The value of a device's entry. What is known of it stays where nothing else is said."""
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
    """A recipient's devices; one that has since been filed for somebody else is no longer theirs."""
    return tuple(
        Device(token, str(one.get("platform", "")), one.get("active") is not False)
        for token in tokens_of(filed)
        if (one := known.get(token, {})).get("recipientId", id) == id
    )


def profile_of(entry: Entry, known: Mapping[str, Mapping[str, Any]]) -> RecipientProfile:
    """A recipient as read, with what is known of their devices."""
    said = {name: entry.value[name] for name in _KEPT if name in entry.value}
    try:
        found = msgspec.convert({**said, "id": entry.key}, RecipientProfile)
    except msgspec.ValidationError as error:
        raise InvalidRequest("recipient.id", f"{entry.key!r} is filed wrongly: {error}") from None
    return replace(
        found,
        devices=devices_of(entry.key, entry.value, known),
        version=entry.version,
        updated_at=moment(entry.updated_at),
        updated_by=entry.updated_by,
    )


def preference_of(entry: Entry) -> Preference:
    """What a preference's entry says; its key says of whom and what."""
    id, category, channel = (part_text(part) for part in entry.key.split(":"))
    return Preference(
        recipient_id=id,
        category=category,
        channel=channel,
        allowed=entry.value.get("allowed") is not False,
        updated_at=moment(entry.updated_at),
        updated_by=entry.updated_by,
    )


def suppression_of(entry: Entry) -> Suppression:
    """What a suppression's entry says; its key says of which address."""
    channel, _, rest = entry.key.partition(":")
    address, _, category = rest.rpartition(":")
    return Suppression(
        channel=Channel(channel),
        address=str(entry.value.get("address", address)),
        category=part_text(category),
        why=str(entry.value.get("why", "")),
        updated_at=moment(entry.updated_at),
        updated_by=entry.updated_by,
    )
