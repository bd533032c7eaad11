"""`homing templates`: lists, checks and previews message templates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from homing.cli.exits import ExitCode, Refused
from homing.cli.inputs import file_text, json_object
from homing.cli.root import group
from homing.cli.screen import Styled, print_json, styled
from homing.cli.shared import Json, Options, command, engine
from homing.cli.words import plural

if TYPE_CHECKING:
    from homing.config import Settings
    from homing.core.model import Channel, Content
    from homing.core.templates import CheckReport, Preview, TemplateSummary

_PAGE = 500

templates = group("templates", "List, check and preview message templates.")


@command(templates, "list")
async def list_(options: Options, json: Json = False) -> int:
    """List templates. With --tenant, include the tenant's own templates."""
    found = await _listed(options)
    if json:
        print_json(found)
        return ExitCode.OK
    origin = options.tenant is not None
    options.screen.table(
        ("KEY", "LOCALE", "VERSION", *(("ORIGIN",) if origin else ()), "CHANNELS"),
        [
            (one.key, locale, its.version, *((one.origin,) if origin else ()), ", ".join(its.channels))
            for one in found
            for locale, its in one.locales.items()
        ],
    )
    return ExitCode.OK


@command(templates, "check")
async def check(options: Options, json: Json = False) -> int:
    """Check every template in every declared locale with its sample data. Exit code 1 if one fails.

    With --tenant, include the tenant's own templates.
    """
    report = await _checked(options)
    if json:
        print_json(report)
        return ExitCode.OK if report.good else ExitCode.NO
    screen = options.screen
    screen.table(
        ("KEY", *report.locales),
        [(key, *(_state(report.state(key, locale)) for locale in report.locales)) for key in report.keys],
    )
    for finding in report.findings:
        screen.line(styled(finding.message, "red"))
    there = f"{plural(len(report.keys), 'template')} in {plural(len(report.locales), 'locale')}"
    if report.good:
        screen.line(f"{there}: no problems")
        return ExitCode.OK
    screen.line(f"{there}: {plural(len(report.findings), 'problem')}")
    return ExitCode.NO


@command(templates, "preview")
async def preview(
    options: Options,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The template's key.")],
    locale: Annotated[
        str | None,
        typer.Option("--locale", metavar="LOCALE", help="The recipient's locale; default: the tenant's."),
    ] = None,
    channel: Annotated[
        str | None,
        typer.Option(
            "--channel", metavar="NAME", help="Only this channel; default: all channels of the template."
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data", metavar="FILE", help="JSON file; - is stdin; default: the template's sample.json."
        ),
    ] = None,
    json: Json = False,
) -> int:
    """Render a template and print its parts. Nothing is sent or stored.

    With --tenant, the tenant's own template takes precedence.
    """
    from homing.cli.filters import one_of
    from homing.core.model import Channel

    values = None if data is None else json_object(file_text(data, "--data"), "--data")
    found = await _previewed(options, key, locale, one_of(Channel, channel, "--channel"), values)
    if json:
        print_json(found)
        return ExitCode.OK
    screen = options.screen
    screen.line(f"{key} in {found.locale}, version {found.version}")
    for one, content in found.contents.items():
        for part, text in _parts(content):
            screen.heading(f"{one} {part}")
            for line in text.splitlines() or [""]:
                screen.line(line)
    return ExitCode.OK


async def _listed(options: Options) -> Sequence[TemplateSummary]:
    """Lists templates. Opens the store only for a tenant, since a build machine may have no store."""
    from homing import compose

    if options.tenant is None:
        return compose.listed_templates(options.settings())
    async with engine(options) as homing:
        found: list[TemplateSummary] = []
        while page := await homing.templates.list(after=found[-1].key if found else "", limit=_PAGE):
            found += page
        return found


async def _checked(options: Options) -> CheckReport:
    from homing import compose

    if options.tenant is None:
        return compose.check_templates(options.settings())
    async with engine(options) as homing:
        return await homing.templates.check()


async def _previewed(
    options: Options, key: str, locale: str | None, channel: Channel | None, data: dict[str, Any] | None
) -> Preview:
    from homing import compose

    if options.tenant is None:
        settings = options.settings()
        return compose.templates(settings).library().preview(key, _locale(settings, locale), channel, data)
    async with engine(options) as homing:
        return await homing.templates.preview(key, locale=locale, channel=channel, data=data)


def _locale(settings: Settings, wanted: str | None) -> str:
    """Returns the declared locale that matches. Raises Refused if none does; there is no fallback."""
    from homing import compose
    from homing.core.locale import lookup, normal

    policy = compose.locales(settings)
    if wanted is None:
        return policy.resolve(settings.tenant, None, None)
    if found := lookup([normal(wanted)], policy.declared):
        return found
    raise Refused(f"--locale: is {wanted!r}; declared locales are {', '.join(policy.declared)}")


def _parts(content: Content) -> Iterator[tuple[str, str]]:
    import msgspec

    for name in ("subject", "title", "body", "text", "html"):
        if (text := getattr(content, name)) is not None:
            yield name, text
    if content.data is not None:
        yield "data", msgspec.json.format(msgspec.json.encode(content.data), indent=2).decode()


def _state(state: str) -> Styled:
    return styled(state, "green" if state == "ok" else "red")
