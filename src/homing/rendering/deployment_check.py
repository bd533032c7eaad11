"""Checks whether the templates of a folder or tenant are complete and render, before they are used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from homing.core.content.templates import CheckReport, TemplateProblem
from homing.core.errors import InvalidRequest
from homing.core.notifications import Channel
from homing.core.send_request import SendLimits, check_content
from homing.rendering.folder_templates import TemplateLibrary, part_file_name, render_with_json_data


def check_library(library: TemplateLibrary, locales: Sequence[str], limits: SendLimits) -> CheckReport:
    """Renders every template in all locales and channels with its sample data, and returns the findings."""
    folder = library.folder
    keys = sorted({*folder.written, *folder.samples})
    found = [TemplateProblem(message=f"{path}: {why}") for path, why in folder.strays]
    if not keys:
        found.append(
            TemplateProblem(message="there are no templates; they must be at KEY/LOCALE/CHANNEL.PART")
        )
    for key in keys:
        found += _check_template(library, key, locales, limits)
    # An error in a shared file appears in every template but is reported once.
    return CheckReport(keys=tuple(keys), locales=tuple(locales), findings=tuple(dict.fromkeys(found)))


def _check_template(
    library: TemplateLibrary, key: str, locales: Sequence[str], limits: SendLimits
) -> Iterator[TemplateProblem]:
    written = library.folder.written.get(key, {})
    for locale in written:
        if locale not in locales:
            message = f"{key}/{locale}: {locale} is not one of the declared locales"
            yield TemplateProblem(key=key, locale=locale, message=message)
    sample: dict[str, Any] | None = None
    try:
        sample = library.sample(key)
    except InvalidRequest as error:
        yield TemplateProblem(key=key, message=_message_without_field(error))
    everywhere = {
        part: None for locale in locales if locale in written for part in _parts(library, key, locale)
    }
    for locale in locales:
        if locale not in written:
            yield TemplateProblem(key=key, locale=locale, missing=True, message=f"{key}/{locale}: is missing")
            continue
        here = _parts(library, key, locale)
        for channel, part in everywhere:
            if (channel, part) not in here:
                name = f"{key}/{locale}/{part_file_name(channel, part)}"
                yield TemplateProblem(
                    key=key, locale=locale, message=f"{name}: is missing; other locales have it"
                )
        yield from _check_rendering(library, key, locale, sample, limits)


def _check_rendering(
    library: TemplateLibrary, key: str, locale: str, sample: dict[str, Any] | None, limits: SendLimits
) -> Iterator[TemplateProblem]:
    try:
        template = library.compiled(key, locale)
    except InvalidRequest as error:
        yield TemplateProblem(key=key, locale=locale, message=_message_without_field(error))
        return
    for channel in template.channels if sample is not None else ():
        try:
            check_content(
                render_with_json_data(template, key, channel, sample or {}).content, channel, limits
            )
        except InvalidRequest as error:
            message = _message_without_field(error)
            place = "" if message.startswith((key, "_")) else f"{key}/{locale}, {channel}: "
            yield TemplateProblem(key=key, locale=locale, message=f"{place}{message}")


def _parts(library: TemplateLibrary, key: str, locale: str) -> dict[tuple[Channel, str], None]:
    return {(source.channel, source.part): None for source in library.folder.written[key][locale].sources}


def _message_without_field(error: InvalidRequest) -> str:
    return str(error).removeprefix("templateKey: ")
