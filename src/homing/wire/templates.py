"""Requests and answers about templates."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct, field

from homing.core.content.templates import TemplateParts, TemplateSummary, TemplateVersion
from homing.core.notifications import Channel
from homing.wire.common import Limit, PageCursor

TemplateKey = Annotated[
    str, Meta(pattern="^[A-Za-z0-9.:/-][A-Za-z0-9_.:/-]{0,99}$", examples=["order_confirmed"])
]

Locale = Annotated[
    str, Meta(pattern="^[A-Za-z]{1,8}(-[A-Za-z0-9]{1,8})*$", max_length=64, examples=["en-US"])
]

ChannelName = Annotated[str, Meta(pattern=f"^({'|'.join(Channel)})$", examples=["email"])]

WrittenLocales = dict[Locale, dict[ChannelName, TemplateParts]]

Version = Annotated[int, Meta(ge=1, le=999_999_999)]


class TemplateBody(
    Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True
):
    """All properties of a template."""

    locales: Annotated[
        WrittenLocales,
        Meta(
            min_length=1,
            max_length=100,
            examples=[{"en-US": {"email": {"subject": "Order {{ number }}", "text": "Hello {{ name }}"}}}],
        ),
    ]
    """Parts of the template by locale and channel. All declared locales need the same channels and parts."""
    sample: Annotated[dict[str, Any], Meta(examples=[{"name": "Ada", "number": 4711}])] = field(
        default_factory=dict
    )
    """Sample data. The template must render with it."""
    version: Annotated[int, Meta(ge=0, le=999_999_999)] = 0
    """Version that this change is based on. If it is no longer the newest, the response is 409.

    If 0, any version is overwritten.
    """


class TemplateDraft(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A draft of a template to check. If `locales` is omitted, all existing templates are checked."""

    key: TemplateKey = "draft"
    """Key of the template."""
    locales: WrittenLocales = field(default_factory=dict)
    """Parts of the template by locale and channel."""
    sample: dict[str, Any] = field(default_factory=dict)
    """Sample data. The template must render with it."""


class TemplatePage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A page of templates, ordered by key."""

    items: tuple[TemplateSummary, ...]
    """Templates of this page."""
    cursor: str | None = None
    """Cursor of the next page. Omitted on the last page."""


class TemplateQuery(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Selects a page of templates."""

    limit: Limit = 50
    cursor: PageCursor | None = None


class DeleteTemplateResponse(Struct, frozen=True, kw_only=True):
    """The deleted template."""

    key: str
    """Key of the template."""
    version: int
    """Last version, by which the template can be restored."""


class TemplateHistory(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A page of a template's versions, newest first."""

    items: tuple[TemplateVersion, ...]
    """Versions of this page."""
    cursor: int | None = None
    """Cursor of the next page. Omitted on the last page."""


class TemplateHistoryQuery(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Selects a page of a template's versions."""

    limit: Annotated[int, Meta(ge=1, le=100, description="Maximum number of items to return.")] = 20
    cursor: Version | None = None
    """Cursor from the previous page. If omitted, the first page is returned."""


class PreviewBody(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Locale, channel and data of a preview."""

    locale: Locale | None = None
    """Preferred locale of the recipient. If omitted, the tenant's default."""
    channel: Channel | None = None
    """Channel to render. If omitted, all channels of the template."""
    data: Annotated[dict[str, Any], Meta(examples=[{"name": "Ada", "number": 4711}])] | None = None
    """Data to render with. If omitted, the template's sample data."""
