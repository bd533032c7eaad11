"""Routes for templates: a tenant's own, and those in the project's folder, which all tenants share.

Only a tenant's own templates can be changed here.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from homing.api.http.routing import Routes
from homing.api.service import ApiCall
from homing.core.access.scopes import Scope
from homing.core.content.templates import (
    CheckReport,
    Locales,
    Preview,
    Template,
    TemplateOrigin,
)
from homing.core.errors import NotFound
from homing.core.notifications import Channel
from homing.wire.templates import (
    DeleteTemplateResponse,
    PreviewBody,
    TemplateBody,
    TemplateDraft,
    TemplateHistory,
    TemplateHistoryQuery,
    TemplateKey,
    TemplatePage,
    TemplateQuery,
    Version,
    WrittenLocales,
)

routes = Routes("Templates")


_MAY_READ = (Scope.READ, Scope.MANAGE)


@routes.get("/templates", scope=_MAY_READ)
async def list_templates(call: ApiCall, query: TemplateQuery) -> TemplatePage:
    """List templates, ordered by key: the tenant's own and the shared ones from the folder."""
    found = await call.tenant_api.templates.list(after=query.cursor or "", limit=query.limit)
    full = len(found) == query.limit
    return TemplatePage(items=found, cursor=found[-1].key if full else None)


@routes.post("/templates/check", scope=Scope.MANAGE, body_optional=True)
async def check_templates(call: ApiCall, body: TemplateDraft) -> CheckReport:
    """Check a draft or, without a body, all templates that the tenant can use.

    Each template must compile, exist in every declared locale with the same parts, and render with its sample
    data.
    """
    with _rendering(call):
        if not body.locales:
            return await call.tenant_api.templates.check()
        draft = Template(key=body.key, locales=_locales(body.locales), sample=body.sample)
        return await call.tenant_api.templates.check(draft)


@routes.get("/templates/{key}", scope=_MAY_READ, errors=("NOT_FOUND",))
async def get_template(call: ApiCall, key: TemplateKey) -> Template:
    """Retrieve the active version of a template, with all its locales and parts."""
    return await call.tenant_api.templates.get(key)


@routes.put(
    "/templates/{key}",
    scope=Scope.MANAGE,
    errors=("VERSION_CONFLICT", "TEMPLATE_FAILED"),
)
async def put_template(call: ApiCall, key: TemplateKey, body: TemplateBody) -> Template:
    """Create or replace a template, as a new version.

    The template is checked first. If the check fails, the response lists all problems and nothing is changed.
    The template takes precedence over a shared one with the same key. Notifications that are accepted
    afterwards use the new version. Other processes switch to it within two seconds.
    """
    await call.note("template.put", key)
    template = Template(key=key, locales=_locales(body.locales), sample=body.sample, version=body.version)
    return await call.tenant_api.templates.put(template, who=call.caller.who)


@routes.delete("/templates/{key}", scope=Scope.MANAGE, errors=("NOT_FOUND",))
async def delete_template(call: ApiCall, key: TemplateKey) -> DeleteTemplateResponse:
    """Delete one of the tenant's own templates. It can be restored by its version.

    If there is a shared template with the same key, it becomes active again.
    """
    version = await _own_version(call, key)
    await call.note("template.delete", key)
    await call.tenant_api.templates.delete(key)
    return DeleteTemplateResponse(key=key, version=version)


@routes.post(
    "/templates/{key}/preview",
    scope=Scope.MANAGE,
    body_optional=True,
    errors=("NOT_FOUND", "TEMPLATE_NOT_FOUND", "TEMPLATE_FAILED"),
)
async def preview_template(call: ApiCall, key: TemplateKey, body: PreviewBody) -> Preview:
    """Render a preview of a template. Nothing is sent or stored."""
    with _rendering(call):
        return await call.tenant_api.templates.preview(
            key, locale=body.locale, channel=body.channel, data=body.data
        )


@routes.get("/templates/{key}/versions", scope=_MAY_READ, errors=("NOT_FOUND",))
async def list_template_versions(
    call: ApiCall, key: TemplateKey, query: TemplateHistoryQuery
) -> TemplateHistory:
    """List the versions of one of the tenant's own templates. The newest hundred versions are kept."""
    await _own_version(call, key)
    found = await call.tenant_api.templates.versions(key, before=query.cursor or 0, limit=query.limit)
    full = len(found) == query.limit
    return TemplateHistory(items=found, cursor=found[-1].version if full else None)


@routes.get("/templates/{key}/versions/{version}", scope=_MAY_READ, errors=("NOT_FOUND",))
async def get_template_version(call: ApiCall, key: TemplateKey, version: Version) -> Template:
    """Retrieve a version of one of the tenant's own templates.

    A notification's `templateVersion` names the version that it was rendered with.
    """
    await _own_version(call, key)
    return await call.tenant_api.templates.version(key, version)


@routes.post(
    "/templates/{key}/versions/{version}/restore",
    scope=Scope.MANAGE,
    errors=("NOT_FOUND", "TEMPLATE_FAILED"),
)
async def restore_template(call: ApiCall, key: TemplateKey, version: Version) -> Template:
    """Restore an earlier version as the newest one. Works for deleted templates too."""
    await call.note("template.restore", key, version=version)
    return await call.tenant_api.templates.restore(key, version, who=call.caller.who)


def _rendering(call: ApiCall) -> AbstractContextManager[None]:
    """Limits how many previews and checks of one tenant, and of all, run at the same time."""
    return call.service.rendering(call.caller.tenant)


async def _own_version(call: ApiCall, key: str) -> int:
    """Returns the active version of the tenant's own template. Raises `NotFound` if there is none."""
    found = await call.tenant_api.templates.get(key)
    if found.origin is not TemplateOrigin.OWN:
        raise NotFound(f"the tenant has no template {key!r} of its own")
    return found.version


def _locales(written: WrittenLocales) -> Locales:
    return {
        locale: {Channel(channel): parts for channel, parts in channels.items()}
        for locale, channels in written.items()
    }
