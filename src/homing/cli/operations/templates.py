"""`homing templates`: lists, checks, previews and restores message templates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from homing.cli.common.exit_codes import CliError, ExitCode
from homing.cli.common.options import (
    Json,
    Options,
    Who,
    command,
    open_engine,
    parse_json_object,
    read_text_file,
    record_audit,
)
from homing.cli.common.screen import StyledText, print_json, styled
from homing.cli.common.units import format_count, format_local_time
from homing.cli.root import add_command_group

if TYPE_CHECKING:
    from homing.core.content.templates import CheckReport, Preview, TemplateSummary
    from homing.core.notifications import Channel, Content
    from homing.settings import Settings


_PAGE = 500

_VERSIONS = 100
"""Maximum number of versions that are listed."""

Key = Annotated[str, typer.Argument(metavar="KEY", help="The template's key.")]


templates = add_command_group("templates", "List, check, preview and restore message templates.")


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
    """Check every template in every locale with its sample data. Exit code 1 if one fails.

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
    there = f"{format_count(len(report.keys), 'template')} in {format_count(len(report.locales), 'locale')}"
    if report.good:
        screen.line(f"{there}: no problems")
        return ExitCode.OK
    screen.line(f"{there}: {format_count(len(report.findings), 'problem')}")
    return ExitCode.NO


@command(templates, "preview")
async def preview(
    options: Options,
    key: Key,
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
    from homing.cli.common.options import parse_choice
    from homing.core.notifications import Channel

    values = None if data is None else parse_json_object(read_text_file(data, "--data"), "--data")
    found = await _previewed(options, key, locale, parse_choice(Channel, channel, "--channel"), values)
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


@command(templates, "versions")
async def versions(options: Options, key: Key, json: Json = False) -> int:
    """List the stored versions of a template, newest first."""
    async with open_engine(options, existing=True) as homing:
        found = await homing.templates.versions(key, limit=_VERSIONS)
    if json:
        print_json({"items": found})
        return ExitCode.OK
    if not found:
        options.notes.line(f"no versions of {key} are stored for tenant {homing.tenant!r}")
        return ExitCode.OK
    options.screen.table(
        ("VERSION>", "WHEN", "WHO"),
        [(str(one.version), format_local_time(one.updated_at), one.updated_by) for one in found],
    )
    return ExitCode.OK


@command(templates, "restore")
async def restore(
    options: Options,
    key: Key,
    version: Annotated[int, typer.Argument(metavar="VERSION", min=1, help="The version to restore.")],
    who: Who = None,
    json: Json = False,
) -> int:
    """Restore an earlier version of a template. It becomes the newest one."""
    async with open_engine(options, existing=True) as homing:
        await homing.templates.version(key, version)
        by = await record_audit(homing, "template.restore", key, who=who, version=version)
        restored = await homing.templates.restore(key, version, who=by)
    if json:
        print_json(restored)
    else:
        options.screen.line(f"{key}: version {version} is restored as version {restored.version}")
    return ExitCode.OK


async def _listed(options: Options) -> Sequence[TemplateSummary]:
    """Lists templates. Opens the store only for a tenant, since a build machine may have no store."""
    from homing import compose

    if options.tenant is None:
        return compose.listed_templates(options.settings())
    async with open_engine(options, existing=True) as homing:
        found: list[TemplateSummary] = []
        while page := await homing.templates.list(after=found[-1].key if found else "", limit=_PAGE):
            found += page
        return found


async def _checked(options: Options) -> CheckReport:
    from homing import compose

    if options.tenant is None:
        return compose.check_templates(options.settings())
    async with open_engine(options, existing=True) as homing:
        return await homing.templates.check()


async def _previewed(
    options: Options, key: str, locale: str | None, channel: Channel | None, data: dict[str, Any] | None
) -> Preview:
    from homing import compose

    if options.tenant is None:
        settings = options.settings()
        return (
            compose.build_folder_renderer(settings)
            .library()
            .preview(key, _locale(settings, locale), channel, data)
        )
    async with open_engine(options, existing=True) as homing:
        return await homing.templates.preview(key, locale=locale, channel=channel, data=data)


def _locale(settings: Settings, wanted: str | None) -> str:
    """Returns the declared locale that matches `wanted`, or the tenant's locale if `wanted` is None.

    Raises CliError if no locale matches; there is no fallback.
    """
    from homing import compose
    from homing.core.content.locales import find_locale, normalize_locale

    policy = compose.build_locale_policy(settings)
    if wanted is None:
        return policy.resolve(settings.tenant, None, None)
    if found := find_locale([normalize_locale(wanted)], policy.declared):
        return found
    raise CliError(f"--locale: is {wanted!r}; declared locales are {', '.join(policy.declared)}")


def _parts(content: Content) -> Iterator[tuple[str, str]]:
    import msgspec

    for name in ("subject", "title", "body", "text", "html"):
        if (text := getattr(content, name)) is not None:
            yield name, text
    if content.data is not None:
        yield "data", msgspec.json.format(msgspec.json.encode(content.data), indent=2).decode()


def _state(state: str) -> StyledText:
    return styled(state, "green" if state == "ok" else "red")
