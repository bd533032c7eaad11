"""What the service takes and answers with: templates.

Written by tools/make_client.py.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from homing.core.model import Channel
from homing.core.templates import TemplateParts, TemplateSummary, TemplateVersion


class TemplateQuery(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which page."""

    limit: int = 50
    cursor: str | None = None


class TemplatePage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """By key; `cursor` asks for what follows, and is left out at the end."""

    items: tuple[TemplateSummary, ...]
    cursor: str | None = None


class TemplateDraft(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A template to be checked; all of it left out: check what there is."""

    key: str = "draft"
    locales: dict[str, dict[str, TemplateParts]] = field(default_factory=dict)
    sample: dict[str, Any] = field(default_factory=dict)


class TemplateWritten(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A template whole."""

    locales: dict[str, dict[str, TemplateParts]]
    """Every declared locale, each with the same channels and parts."""
    sample: dict[str, Any] = field(default_factory=dict)
    """The data that it is tried with; it must render with it."""
    version: int = 0
    """The one that was read: 409 where it is no longer the newest. 0: over whatever is there."""


class TemplateDeleted(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is no longer in force."""

    key: str
    version: int
    """By which it can be restored."""


class PreviewWanted(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """In which locale, for which channel, with which data."""

    locale: str | None = None
    """As a recipient prefers it; left out: the tenant's default."""
    channel: Channel | None = None
    """Left out: all that it has."""
    data: dict[str, Any] | None = None
    """Left out: its sample."""


class TemplateHistoryQuery(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which page of a template's versions."""

    limit: int = 20
    cursor: int | None = None


class TemplateHistory(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Newest first; `cursor` asks for what is older, and is left out at the end."""

    items: tuple[TemplateVersion, ...]
    cursor: int | None = None
