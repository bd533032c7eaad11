"""What the service takes and answers with: recipients.

Written by tools/make_client.py.
"""

from __future__ import annotations

from msgspec import Struct

from homing.core.recipients import Device, Preference, QuietWindow, RecipientProfile


class RecipientQuery(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which page."""

    limit: int = 50
    cursor: str | None = None


class RecipientPage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """By id; `cursor` asks for what follows, and is left out at the end."""

    items: tuple[RecipientProfile, ...]
    cursor: str | None = None


class RecipientWritten(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A recipient whole: what is left out is not there afterwards."""

    email: str | None = None
    phone: str | None = None
    url: str | None = None
    locale: str | None = None
    time_zone: str | None = None
    """As the tz database names it."""
    quiet_hours: QuietWindow | None = None
    """None: those of the settings."""
    devices: tuple[Device, ...] = ()
    version: int = 0
    """The one that was read: 409 where it is no longer the newest. 0: over whatever is there."""


class DeviceWritten(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is said of a device."""

    platform: str = ""
    active: bool = True
    """False: nothing is sent there."""


class PreferencePage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that one recipient has said."""

    items: tuple[Preference, ...]


class PreferenceWritten(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whether they want it."""

    allowed: bool
