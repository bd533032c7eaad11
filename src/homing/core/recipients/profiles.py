"""The types of recipients, devices, preferences and suppressions, and the checks of what callers write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from homing.core.content.locales import is_language_tag
from homing.core.errors import InvalidRequest
from homing.core.lifecycle.effects import EVERY_CATEGORY, EVERY_CHANNEL, suppression_key
from homing.core.notifications import Channel, Recipient
from homing.core.plain_values import check_line
from homing.core.recipients.quiet_hours import Window, time_of_day_ms
from homing.core.request_decoding import explain_error, read_fields
from homing.core.send_request import ADDRESS_FIELD, address_of, check_name
from homing.core.strict_decoding import explain_unknown_field

_MAX_ID_CHARS = 320

_MAX_TOKEN_CHARS = 4096

_MAX_DEVICES = 50

_TimeOfDay = Annotated[str, Meta(examples=["22:00"])]


class KnownRecipient(Recipient, frozen=True, omit_defaults=True, rename="camel"):
    """A recipient from the directory, with all active devices."""

    device_tokens: tuple[str, ...] = ()
    """Tokens of the active devices. A push message that names only the recipient goes to each of them."""


class Device(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A device that receives push messages."""

    token: Annotated[str, Meta(min_length=1, max_length=_MAX_TOKEN_CHARS, examples=["fcm-token-1"])]
    platform: Annotated[str, Meta(max_length=50, examples=["ios"])] = ""
    """Platform of the device: `ios`, `android`, `web` or another name that the application chooses. Empty if
    not given."""
    active: bool | None = None
    """Whether messages are sent to the device. Always set in responses. If a request leaves it out, a known
    device keeps its state, and a new one is active."""


class QuietWindow(Struct, frozen=True, rename="camel"):
    """A recipient's own quiet hours, such as `22:00` to `07:00`. Equal times mean no quiet hours."""

    start: _TimeOfDay
    end: _TimeOfDay


class RecipientProfile(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A recipient as stored by the application. Messages refer to the recipient by `id`."""

    id: str
    email: str | None = None
    phone: str | None = None
    url: str | None = None
    locale: str | None = None
    time_zone: str | None = None
    """Time zone by its name in the tz database, such as `Europe/Berlin`. None if not known."""
    quiet_hours: QuietWindow | None = None
    """The recipient's own quiet hours. If None, the quiet hours of the settings apply."""
    devices: tuple[Device, ...] = ()
    """Devices for push messages, which are sent to each active device."""
    version: int = 0
    """Version that increases with each write. A write with an outdated version is rejected; 0 overwrites any
    version."""
    updated_at: datetime | None = None
    updated_by: str = ""


class Preference(Struct, frozen=True, kw_only=True, rename="camel"):
    """Whether a recipient wants a category on a channel.

    A preference for `*` applies to all categories or channels without a preference of their own.
    """

    recipient_id: str
    category: str
    channel: str
    allowed: bool
    updated_at: datetime
    updated_by: str


class Suppression(Struct, frozen=True, kw_only=True, rename="camel"):
    """An address to which nothing is sent on this channel, in one category or in all of them (`*`)."""

    channel: Channel
    address: str
    category: str
    why: str
    updated_at: datetime
    updated_by: str

    @property
    def place(self) -> str:
        """Sort key of the suppression. A page of a list starts after the last key of the page before."""
        return suppression_key(self.channel, self.address, self.category)


def read_profile(
    raw: RecipientProfile | Mapping[str, Any], is_zone: Callable[[str], bool]
) -> RecipientProfile:
    """Returns a validated profile with normalized addresses. Raises `InvalidRequest` naming the field."""
    if isinstance(raw, Mapping):
        raw = _read(raw)
    if not isinstance(raw, RecipientProfile):
        raise InvalidRequest("recipient", f"is {type(raw).__name__}; give a RecipientProfile or a mapping")
    check_id(raw.id)
    if raw.locale is not None and not is_language_tag(raw.locale):
        raise InvalidRequest("recipient.locale", "is not a locale like en-US, de or zh-Hant")
    if raw.time_zone is not None and not is_zone(raw.time_zone):
        raise InvalidRequest(
            "recipient.timeZone", "is not a time zone like Europe/Berlin or America/New_York"
        )
    if raw.quiet_hours is not None:
        read_window(raw.quiet_hours, "recipient.quietHours")
    return replace(
        raw,
        email=_address(raw.email, Channel.EMAIL),
        phone=_address(raw.phone, Channel.SMS),
        url=_address(raw.url, Channel.WEBHOOK),
        devices=_checked_devices(raw.devices),
    )


def check_id(id: Any) -> None:
    """Raises `InvalidRequest` unless the recipient's id is one non-empty line of at most 320 characters."""
    if not isinstance(id, str) or not id.strip():
        raise InvalidRequest("recipient.id", "is empty; give the recipient's id in your application")
    check_line(id, "recipient.id")
    if len(id) > _MAX_ID_CHARS:
        raise InvalidRequest("recipient.id", f"has {len(id)} characters; at most {_MAX_ID_CHARS} are allowed")


def check_category(category: Any) -> str:
    """Returns the category. Raises `InvalidRequest` unless it is a valid name or `*`."""
    if category != EVERY_CATEGORY:
        check_name(category, "category")
    return str(category)


def read_channel(name: Any, *, or_all: bool = False) -> str:
    """Returns a channel's name, or `*` if `or_all` permits it.

    Raises `InvalidRequest` if there is no such channel.
    """
    if or_all and name == EVERY_CHANNEL:
        return EVERY_CHANNEL
    try:
        return Channel(str(name).lower()).value
    except ValueError:
        names = [*(channel.value for channel in Channel), *((EVERY_CHANNEL,) if or_all else ())]
        raise InvalidRequest("channel", f"is {name!r}; it must be one of {', '.join(names)}") from None


def normalize_address(channel: Channel, address: Any) -> str:
    """Returns an address in the form in which notifications store it.

    Raises `InvalidRequest` if it is not valid on this channel.
    """
    if not isinstance(address, str) or not address.strip():
        raise InvalidRequest("address", f"is empty; give an address for {channel.value}")
    if len(address) > _MAX_TOKEN_CHARS:
        raise InvalidRequest(
            "address", f"has {len(address)} characters; at most {_MAX_TOKEN_CHARS} are allowed"
        )
    try:
        return address_of(Recipient(**{ADDRESS_FIELD[channel]: address}), channel)
    except InvalidRequest as error:
        raise InvalidRequest("address", str(error).removeprefix(f"{error.field}: ")) from None


def read_window(said: QuietWindow, where: str) -> Window:
    """Converts two times of day to a window. Raises `InvalidRequest` if one of them is invalid."""
    times = []
    for name in ("start", "end"):
        text = getattr(said, name)
        found = time_of_day_ms(text) if isinstance(text, str) else None
        if found is None:
            raise InvalidRequest(f"{where}.{name}", f"is {text!r}; give a time of day like 22:00")
        times.append(found)
    return Window(*times)


def _read(raw: Mapping[str, Any]) -> RecipientProfile:
    """Reads a profile from a mapping with snake_case or camelCase keys."""
    fields = read_fields(raw, RecipientProfile, "recipient.")
    fields.setdefault("id", "")
    if unknown := explain_unknown_field(fields, RecipientProfile):
        raise InvalidRequest(f"recipient.{unknown[0]}", unknown[1])
    try:
        return msgspec.convert(fields, RecipientProfile)
    except msgspec.ValidationError as error:
        field, problem = explain_error(error, RecipientProfile.__struct_encode_fields__)
        raise InvalidRequest(f"recipient.{field}", problem) from None


def _address(raw: str | None, channel: Channel) -> str | None:
    return None if raw is None else address_of(Recipient(**{ADDRESS_FIELD[channel]: raw}), channel)


def _checked_devices(devices: tuple[Device, ...]) -> tuple[Device, ...]:
    if len(devices) > _MAX_DEVICES:
        raise InvalidRequest(
            "recipient.devices", f"has {len(devices)} entries; at most {_MAX_DEVICES} are allowed"
        )
    found: dict[str, Device] = {}
    for i, device in enumerate(devices):
        where = f"recipient.devices[{i}]"
        token = device.token.strip()
        check_line(token, f"{where}.token")
        check_line(device.platform, f"{where}.platform")
        if not 0 < len(token) <= _MAX_TOKEN_CHARS:
            raise InvalidRequest(f"{where}.token", f"must have 1 to {_MAX_TOKEN_CHARS} characters")
        if len(device.platform) > 50:
            raise InvalidRequest(
                f"{where}.platform", f"has {len(device.platform)} characters; at most 50 are allowed"
            )
        if token in found:
            raise InvalidRequest(f"{where}.token", "is a duplicate of an earlier device")
        found[token] = replace(device, token=token)
    return tuple(found.values())
