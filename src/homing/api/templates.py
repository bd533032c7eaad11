"""Templates: what messages say, per tenant, beside those of the project's folder."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct, field

from homing.api.recipients import PageCursor, PageLimit
from homing.api.routing import Routes
from homing.api.service import Call
from homing.core.access import Scope
from homing.core.errors import NotFound
from homing.core.model import Channel
from homing.core.templates import (
    CheckReport,
    Locales,
    Preview,
    Template,
    TemplateOrigin,
    TemplateParts,
    TemplateSummary,
    TemplateVersion,
)

routes = Routes("Templates")

_MAY_READ = (Scope.READ, Scope.MANAGE)


TemplateKey = Annotated[
    str, Meta(pattern="^[A-Za-z0-9.:/-][A-Za-z0-9_.:/-]{0,99}$", examples=["order_confirmed"])
]
Locale = Annotated[
    str, Meta(pattern="^[A-Za-z]{1,8}(-[A-Za-z0-9]{1,8})*$", max_length=64, examples=["en-US"])
]
ChannelName = Annotated[str, Meta(pattern=f"^({'|'.join(Channel)})$", examples=["email"])]
WrittenLocales = dict[Locale, dict[ChannelName, TemplateParts]]
Version = Annotated[int, Meta(ge=1, le=999_999_999)]


class TemplateWritten(
    Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True
):
    """A template whole."""

    locales: Annotated[
        WrittenLocales,
        Meta(
            min_length=1,
            max_length=100,
            examples=[{"en-US": {"email": {"subject": "Order {{ number }}", "text": "Hello {{ name }}"}}}],
        ),
    ]
    """Every declared locale, each with the same channels and parts."""
    sample: Annotated[dict[str, Any], Meta(examples=[{"name": "Ada", "number": 4711}])] = field(
        default_factory=dict
    )
    """The data that it is tried with; it must render with it."""
    version: Annotated[int, Meta(ge=0, le=999_999_999)] = 0
    """The one that was read: 409 where it is no longer the newest. 0: over whatever is there."""


class TemplateDraft(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A template to be checked; all of it left out: check what there is."""

    key: TemplateKey = "draft"
    locales: WrittenLocales = field(default_factory=dict)
    sample: dict[str, Any] = field(default_factory=dict)


class TemplatePage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """By key; `cursor` asks for what follows, and is left out at the end."""

    items: tuple[TemplateSummary, ...]
    cursor: str | None = None


class TemplateQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which page."""

    limit: PageLimit = 50
    cursor: PageCursor | None = None


class TemplateDeleted(Struct, frozen=True, kw_only=True):
    """What is no longer in force."""

    key: str
    version: int
    """By which it can be restored."""


class TemplateHistory(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Newest first; `cursor` asks for what is older, and is left out at the end."""

    items: tuple[TemplateVersion, ...]
    cursor: int | None = None


class TemplateHistoryQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which page of a template's versions."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    cursor: Version | None = None


class PreviewWanted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """In which locale, for which channel, with which data."""

    locale: Locale | None = None
    """As a recipient prefers it; left out: the tenant's default."""
    channel: Channel | None = None
    """Left out: all that it has."""
    data: Annotated[dict[str, Any], Meta(examples=[{"name": "Ada", "number": 4711}])] | None = None
    """Left out: its sample."""


@routes.get("/templates", scope=_MAY_READ)
async def list_templates(call: Call, query: TemplateQuery) -> TemplatePage:
    """List templates by key: the tenant's own, and those of the folder that all tenants have."""
    found = await call.front.templates.list(after=query.cursor or "", limit=query.limit)
    full = len(found) == query.limit
    return TemplatePage(items=found, cursor=found[-1].key if full else None)


@routes.post("/templates/check", scope=_MAY_READ, body_optional=True)
async def check_templates(call: Call, body: TemplateDraft) -> CheckReport:
    """Check a draft, or (without a body) everything that the tenant can send.

    Each must compile, be there in every declared locale with the same parts, and render with its sample.
    """
    if not body.locales:
        return await call.front.templates.check()
    draft = Template(key=body.key, locales=_locales(body.locales), sample=body.sample)
    return await call.front.templates.check(draft)


@routes.get("/templates/{key}", scope=_MAY_READ, errors=("NOT_FOUND",))
async def get_template(call: Call, key: TemplateKey) -> Template:
    """One template with all its locales and parts, as it is in force."""
    return await call.front.templates.get(key)


@routes.put(
    "/templates/{key}",
    scope=Scope.MANAGE,
    errors=("VERSION_CONFLICT", "TEMPLATE_FAILED"),
)
async def put_template(call: Call, key: TemplateKey, body: TemplateWritten) -> Template:
    """Write a template whole, as a new version.

    It is checked first, as a deployment is, and refused with all that is wrong. It wins over the folder's of
    the same key. Sends that are accepted from then on use it, in other processes within two seconds.
    """
    await call.note("template.put", key)
    template = Template(key=key, locales=_locales(body.locales), sample=body.sample, version=body.version)
    return await call.front.templates.put(template, who=call.caller.who)


@routes.delete("/templates/{key}", scope=Scope.MANAGE, errors=("NOT_FOUND",))
async def delete_template(call: Call, key: TemplateKey) -> TemplateDeleted:
    """Take the tenant's own template out of force; it can be restored by its version.

    The folder's of the same key is in force again.
    """
    version = await _own_version(call, key)
    await call.note("template.delete", key)
    await call.front.templates.delete(key)
    return TemplateDeleted(key=key, version=version)


@routes.post(
    "/templates/{key}/preview",
    scope=_MAY_READ,
    body_optional=True,
    errors=("NOT_FOUND", "TEMPLATE_NOT_FOUND", "TEMPLATE_FAILED"),
)
async def preview_template(call: Call, key: TemplateKey, body: PreviewWanted) -> Preview:
    """How a template reads. Nothing is sent or stored."""
    return await call.front.templates.preview(key, locale=body.locale, channel=body.channel, data=body.data)


@routes.get("/templates/{key}/versions", scope=_MAY_READ, errors=("NOT_FOUND",))
async def list_template_versions(
    call: Call, key: TemplateKey, query: TemplateHistoryQuery
) -> TemplateHistory:
    """The versions of a tenant's own template; the last hundred are kept."""
    await _own_version(call, key)
    found = await call.front.templates.versions(key, before=query.cursor or 0, limit=query.limit)
    full = len(found) == query.limit
    return TemplateHistory(items=found, cursor=found[-1].version if full else None)


@routes.get("/templates/{key}/versions/{version}", scope=_MAY_READ, errors=("NOT_FOUND",))
async def get_template_version(call: Call, key: TemplateKey, version: Version) -> Template:
    """A template as it was then: what a notification's `templateVersion` was made from."""
    await _own_version(call, key)
    return await call.front.templates.version(key, version)


@routes.post(
    "/templates/{key}/versions/{version}/restore",
    scope=Scope.MANAGE,
    errors=("NOT_FOUND", "TEMPLATE_FAILED"),
)
async def restore_template(call: Call, key: TemplateKey, version: Version) -> Template:
    """Write an earlier version anew, as the newest; also of a template that was deleted."""
    await call.note("template.restore", key, version=version)
    return await call.front.templates.restore(key, version, who=call.caller.who)


async def _own_version(call: Call, key: str) -> int:
    """The one in force of the tenant's own; what was deleted is not there, though it can be restored."""
    found = await call.front.templates.get(key)
    if found.origin is not TemplateOrigin.OWN:
        raise NotFound(f"the tenant has no template {key!r} of its own")
    return found.version


def _locales(written: WrittenLocales) -> Locales:
    return {
        locale: {Channel(channel): parts for channel, parts in channels.items()}
        for locale, channels in written.items()
    }
