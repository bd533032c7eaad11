"""`homing templates`: what is there, whether it is fit to be deployed, and how it reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from homing.cli.exits import ExitCode, Refused
from homing.cli.inputs import file_text, json_object
from homing.cli.root import group
from homing.cli.screen import Styled, print_json, styled
from homing.cli.shared import Json, Options, command
from homing.cli.words import plural

if TYPE_CHECKING:
    from homing.config import Settings
    from homing.core.model import Content

templates = group("templates", "List, check and preview message templates.")


@command(templates, "list")
def list_(options: Options, json: Json = False) -> int:
    """List templates: their channels, locales and versions."""
    from homing import compose

    written = compose.templates(options.settings()).library().folder.written
    if json:
        print_json(
            [
                {
                    "key": key,
                    "locales": {
                        locale: {"version": one.version, "channels": one.channels}
                        for locale, one in locales.items()
                    },
                }
                for key, locales in written.items()
            ]
        )
        return ExitCode.OK
    options.screen.table(
        ("KEY", "LOCALE", "VERSION", "CHANNELS"),
        [
            (key, locale, one.version, ", ".join(one.channels))
            for key, locales in written.items()
            for locale, one in locales.items()
        ],
    )
    return ExitCode.OK


@command(templates, "check")
def check(options: Options, json: Json = False) -> int:
    """Check every template in every declared locale with its sample data; exit code 1 if one is not fit."""
    from homing import compose

    report = compose.check_templates(options.settings())
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
        screen.line(f"{there}: all is well")
        return ExitCode.OK
    screen.line(f"{there}: {plural(len(report.findings), 'problem')}")
    return ExitCode.NO


@command(templates, "preview")
def preview(
    options: Options,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The template's key.")],
    locale: Annotated[
        str | None,
        typer.Option("--locale", metavar="LOCALE", help="As a recipient prefers it; default: the tenant's."),
    ] = None,
    channel: Annotated[
        str | None, typer.Option("--channel", metavar="NAME", help="Only this channel; default: all it has.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="FILE", help="JSON; - is stdin; default: the template's sample.json."),
    ] = None,
    json: Json = False,
) -> int:
    """Render a template and print its parts; nothing is sent or stored."""
    from homing import compose
    from homing.cli.filters import one_of
    from homing.core.model import Channel

    settings = options.settings()
    values = None if data is None else json_object(file_text(data, "--data"), "--data")
    found = (
        compose.templates(settings)
        .library()
        .preview(key, _locale(settings, locale), one_of(Channel, channel, "--channel"), values)
    )
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


def _locale(settings: Settings, wanted: str | None) -> str:
    """The declared locale that is meant; a preview, too, falls back to no other."""
    from homing import compose
    from homing.core.locale import LAST_RESORT, lookup, normal

    policy = compose.locales(settings)
    if policy is None:
        return LAST_RESORT
    if wanted is None:
        return policy.resolve(settings.tenant, None, None)
    if found := lookup([normal(wanted)], policy.declared):
        return found
    raise Refused(f"--locale: is {wanted!r}; the declared ones are {', '.join(policy.declared)}")


def _parts(content: Content) -> Iterator[tuple[str, str]]:
    import msgspec

    for name in ("subject", "title", "body", "text", "html"):
        if (text := getattr(content, name)) is not None:
            yield name, text
    if content.data is not None:
        yield "data", msgspec.json.format(msgspec.json.encode(content.data), indent=2).decode()


def _state(state: str) -> Styled:
    return styled(state, "green" if state == "ok" else "red")
