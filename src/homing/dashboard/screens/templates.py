"""Templates: the list, their versions, previews per locale and channel, and the check of all of them."""

from __future__ import annotations

import difflib
from typing import Any

import msgspec
from starlette.responses import Response

from homing.core.access.scopes import Scope
from homing.core.content.templates import Template
from homing.core.errors import CommandRefused, ConfigError, InvalidRequest
from homing.core.notifications import Channel
from homing.dashboard.screens.find import framed
from homing.dashboard.visits import Screens, Visit, explain_problem

screens = Screens()

_VERSIONS = 50
"""Maximum number of versions on a page, the newest ones."""


@screens.get("templates", Scope.READ)
async def show_templates(visit: Visit) -> Response:
    """Lists the templates, and checks them if asked."""
    try:
        found = await visit.api.templates.list(limit=500)
        report = None
        if visit.query.get("check") and visit.may(Scope.MANAGE):
            with visit.tools.rendering(visit.caller.tenant):
                report = await visit.api.templates.check()
    except ConfigError as error:
        return visit.page("templates.html", templates=(), report=None, problem=str(error))
    return visit.page("templates.html", templates=found, report=report, problem="")


@screens.get("templates/{key}", Scope.READ)
async def show_template(visit: Visit, key: str) -> Response:
    """Shows one template with a preview."""
    template = await visit.api.templates.get(key)
    locale = visit.query.get("locale") or next(iter(template.locales))
    if locale not in template.locales:
        raise InvalidRequest("locale", f"is {locale!r}; the template has {', '.join(template.locales)}")
    preview, problem, old = None, "", None
    if visit.query.get("version"):
        old = await visit.api.templates.version(key, _version(visit.query["version"]))
    if visit.may(Scope.MANAGE):
        try:
            with visit.tools.rendering(visit.caller.tenant):
                preview = await visit.api.templates.preview(key, locale=locale, data=_data(visit))
        except (CommandRefused, ConfigError, InvalidRequest) as error:
            problem = explain_problem(error)
    return visit.page(
        "template.html",
        template=template,
        locale=locale,
        preview=preview,
        problem=problem,
        sample=visit.query.get("data") or msgspec.json.format(msgspec.json.encode(template.sample)).decode(),
        versions=await visit.api.templates.versions(key, limit=_VERSIONS),
        most_versions=_VERSIONS,
        old=old,
        difference=() if old is None else _difference(old, template, locale),
    )


@screens.post("templates/{key}/restore", Scope.MANAGE)
async def restore_template(visit: Visit, key: str, form: dict[str, str]) -> Response:
    """Writes an earlier version of a template again, as the newest one."""
    version = _version(form.get("version", ""))
    await visit.api.templates.version(key, version)
    await visit.note("template.restore", key, version=version)
    await visit.api.templates.restore(key, version, who=visit.caller.who)
    return visit.go(f"templates/{key}", done="restored")


def _version(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise InvalidRequest("version", "is not a number")
    return int(text)


def _difference(old: Template, new: Template, locale: str) -> list[tuple[str, str]]:
    """Returns the lines of two versions of a source, each with `-`, `+` or a blank before it."""
    before, after = (
        msgspec.json.format(msgspec.json.encode(one.locales.get(locale, {}))).decode().splitlines()
        for one in (old, new)
    )
    lines = difflib.ndiff(before, after)
    return [(line[0], line[2:]) for line in lines if not line.startswith("?")]


@screens.get("templates/{key}/message", Scope.MANAGE)
async def show_template_message(visit: Visit, key: str) -> Response:
    """Returns the HTML of a preview, for the sandboxed frame."""
    data = _data(visit)
    with visit.tools.rendering(visit.caller.tenant):
        preview = await visit.api.templates.preview(
            key, locale=visit.query.get("locale") or None, channel=Channel.EMAIL, data=data
        )
    return framed(next((one.html or "" for one in preview.contents.values()), ""))


def _data(visit: Visit) -> dict[str, Any] | None:
    text = visit.query.get("data", "")
    if not text:
        return None
    try:
        found = msgspec.json.decode(text)
    except msgspec.DecodeError:
        raise InvalidRequest("data", "is not valid JSON") from None
    if not isinstance(found, dict):
        raise InvalidRequest("data", "must be a JSON object")
    return found
