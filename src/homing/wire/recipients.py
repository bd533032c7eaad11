"""Requests and answers about recipients, their devices and preferences, and suppressions."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from homing.core.lifecycle.effects import EVERY_CATEGORY
from homing.core.notifications import Channel
from homing.core.recipients.profiles import Device, Preference, QuietWindow, RecipientProfile, Suppression
from homing.wire.common import LINE, Category, Limit, PageCursor


class RecipientBody(
    Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True
):
    """All properties of a recipient. Properties that are omitted are removed."""

    email: Annotated[str, Meta(examples=["ada@example.org"])] | None = None
    """Email address."""
    phone: Annotated[str, Meta(examples=["+15550100"])] | None = None
    """Phone number in international format."""
    url: Annotated[str, Meta(examples=["https://example.org/hook"])] | None = None
    """URL for webhook notifications."""
    locale: Annotated[str, Meta(examples=["en-GB"])] | None = None
    """Preferred language, as a language tag."""
    time_zone: Annotated[str, Meta(examples=["Europe/London"])] | None = None
    """Time zone, as a name from the tz database."""
    quiet_hours: QuietWindow | None = None
    """Hours in which nothing is sent. If omitted, the quiet hours in the settings apply."""
    devices: Annotated[tuple[Device, ...], Meta(max_length=50)] = ()
    """Devices for push notifications."""
    version: Annotated[int, Meta(ge=0, le=2**53)] = 0
    """Version that this change is based on. If it is no longer the newest, the response is 409.

    If 0, any version is overwritten.
    """


class RecipientPage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A page of recipients, ordered by id."""

    items: tuple[RecipientProfile, ...]
    """Recipients of this page."""
    cursor: str | None = None
    """Cursor of the next page. Omitted on the last page."""


class RecipientQuery(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Selects a page of recipients."""

    limit: Limit = 50
    cursor: PageCursor | None = None


class DeviceBody(
    Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True
):
    """Properties of a device."""

    platform: Annotated[str, Meta(max_length=50, examples=["ios"])] = ""
    """Platform of the device."""
    active: bool = True
    """If false, nothing is sent to the device."""


class PreferenceList(Struct, frozen=True, kw_only=True):
    """All preferences of one recipient."""

    items: tuple[Preference, ...]
    """Preferences, one per category and channel."""


class PreferenceBody(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A recipient's preference for a category on a channel."""

    allowed: bool
    """True if notifications of the category may be sent on the channel."""


Address = Annotated[str, Meta(max_length=4096, pattern=LINE, examples=["ada@example.org"])]


class SuppressionPage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A page of suppressions, ordered by channel and address."""

    items: tuple[Suppression, ...]
    """Suppressions of this page."""
    cursor: str | None = None
    """Cursor of the next page. Omitted on the last page."""


class SuppressionQuery(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Selects suppressions and a page of them."""

    channel: Channel | None = None
    """Channel of the suppressions. If omitted, all channels."""
    address: Address | None = None
    """Suppressed address. Requires `channel`. If omitted, all addresses."""
    limit: Limit = 50
    cursor: PageCursor | None = None


class SuppressionBody(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A suppression to add."""

    channel: Channel
    """Channel of the address."""
    address: Address
    """Address to suppress."""
    category: Category = EVERY_CATEGORY
    """Category to suppress. `*` suppresses all categories."""
    why: Annotated[str, Meta(max_length=500, pattern="^[^\\x00-\\x1f\\x7f\\x85\\u2028\\u2029]*$")] = ""
    """Reason for the suppression."""


class SuppressionKeyQuery(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Identifies a suppression. Suppressions of `*` and of a category are separate."""

    channel: Channel
    """Channel of the address."""
    address: Address
    """Suppressed address."""
    category: Category = EVERY_CATEGORY
    """Suppressed category, or `*`."""
