"""Renders the templates of the pages. Values are escaped; only charts and rendered parts are trusted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from homing.core.durations import format_duration
from homing.core.times import moment
from homing.dashboard.static_files import static_url

_KINDS = {
    **dict.fromkeys(
        ("sent", "delivered", "closed", "live", "active", "done", "accepted", "ok", "connected"), "good"
    ),
    **dict.fromkeys(
        (
            "failed",
            "open",
            "dead",
            "revoked",
            "bad_recipient",
            "bad_content",
            "dead_address",
            "opted_out",
            "not connected",
        ),
        "bad",
    ),
    **dict.fromkeys(
        ("retrying", "in_doubt", "half_open", "interrupted", "stopped", "expired", "transient"), "warn"
    ),
    **dict.fromkeys(("throttled", "provider_fault", "ambiguous", "lost", "draining"), "warn"),
    **dict.fromkeys(("sending", "running", "pending"), "mark"),
}
"""Word for a state → class of its color."""


@cache
def environment() -> Environment:
    """Returns the Jinja environment of all pages."""
    made = Environment(
        loader=PackageLoader("homing.dashboard", "templates"),
        autoescape=lambda name: name is None or not name.endswith(".txt"),  # noqa: S701 (pages are escaped)
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        duration=show_duration,
        number=show_number,
        day=show_day,
        kind=kind_of,
        word=show_word,
        counted=show_counted,
        counts=count_values,
        slots=show_slots,
        with_times=mark_times,
        json=show_json,
        detail=show_detail,
        trusted=trust,
        end_time=lambda ms: f"{show_day(moment(ms))} UTC",
    )
    made.globals.update(static_url=static_url, age=show_age, moment_of=utc_parts)
    return made


def render(template: str, /, **values: Any) -> str:
    """Renders a template of the package."""
    return environment().get_template(template).render(**values)


def trust(html: str) -> Markup:
    """Marks text as safe: SVG of `homing.charts` and rendered templates, which escape all their texts."""
    return Markup(html)  # noqa: S704 (see above)


def show_duration(ms: float | None) -> str:
    """Returns a duration as people read it, or a dash."""
    return "–" if ms is None else format_duration(max(0, ms), spaced=True)


def show_number(value: float | None) -> str:
    """Returns a number with separators, or a dash."""
    if value is None:
        return "–"
    return f"{value:,.1f}" if value != int(value) else f"{int(value):,}"


def show_counted(number: int, one: str, many: str = "") -> str:
    """Returns a number with its noun, such as `1 entry`. Without `many`, the plural ends in `s`."""
    return f"{show_number(number)} {one if number == 1 else many or one + 's'}"


def count_values(items: Iterable[object], name: str) -> list[tuple[Any, int]]:
    """Returns each value of an attribute with the number of items that have it, the most frequent first."""
    return Counter(getattr(item, name) for item in items).most_common()


def show_slots(lanes: Mapping[str, int]) -> list[str]:
    """Returns the slots of a worker by lane. Lanes of a mode with equal slots are one text."""
    modes: dict[str, dict[str, int]] = {}
    for lane, slots in lanes.items():
        mode, _, channel = lane.partition(".")
        modes.setdefault(mode, {})[channel] = slots
    texts = list[str]()
    for mode, channels in modes.items():
        if len(channels) > 1 and len(set(channels.values())) == 1:
            texts.append(f"{mode} {next(iter(channels.values()))} on each of {len(channels)} channels")
        else:
            texts += [
                f"{mode}.{channel} {slots}" if channel else f"{mode} {slots}"
                for channel, slots in channels.items()
            ]
    return texts


_TIME_IN_TEXT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\+00:00|Z)")


def mark_times(text: str) -> Markup:
    """Returns escaped text whose UTC times are `time` elements, so that they can be shown as local time."""

    def mark(found: re.Match[str]) -> Markup:
        parts = utc_parts(datetime.fromisoformat(found[0]))
        return Markup('<time datetime="{iso}" data-utc="{day}" data-form="day">{day}</time>').format(**parts)

    pieces, end = list[Markup | str](), 0
    for found in _TIME_IN_TEXT.finditer(text):
        pieces += [text[end : found.start()], mark(found)]
        end = found.end()
    return Markup("").join([*pieces, text[end:]])


def mark_clock_times(text: str, moments: Mapping[str, datetime]) -> Markup:
    """Returns escaped text in which `since` and a time of `moments` is followed by a `time` element.

    `moments` has the texts of times as keys, such as `02:41`.
    """

    def mark(found: re.Match[str]) -> Markup:
        shown = found[1]
        form = "minute" if len(shown) == len("02:41") else "day"
        made = Markup('since <time datetime="{iso}" data-utc="{shown}" data-form="{form}">{shown}</time>')
        return made.format(iso=utc_parts(moments[shown])["iso"], shown=shown, form=form)

    if not moments:
        return Markup("{}").format(text)
    pieces, end = list[Markup | str](), 0
    for found in re.finditer(f"since ({'|'.join(map(re.escape, moments))})(?![0-9:])", text):
        pieces += [text[end : found.start()], mark(found)]
        end = found.end()
    return Markup("").join([*pieces, text[end:]])


def show_day(at: datetime | None) -> str:
    """Returns date and time in UTC, or a dash."""
    return "–" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def utc_parts(at: datetime) -> dict[str, str]:
    """Returns the forms of a time that the macro `time` needs."""
    at = at.astimezone(UTC)
    return {"iso": at.isoformat(), "time": f"{at:%H:%M:%S}", "day": f"{at:%Y-%m-%d %H:%M:%S}"}


def show_age(at: datetime | None, now: datetime) -> str:
    """Returns how long ago, or in how long, a time is."""
    if at is None:
        return "–"
    ms = (now - at).total_seconds() * 1000
    if abs(ms) < 1000:
        return "now"
    shown = format_duration(round(abs(ms) / 1000) * 1000, spaced=True)
    return f"{shown} ago" if ms > 0 else f"in {shown}"


def kind_of(word: object) -> str:
    """Returns the class of the color of a state, or nothing."""
    return _KINDS.get(str(word), "")


def show_word(state: object) -> str:
    """Returns the words for a state, such as `in doubt`. Codes in capitals stay as they are."""
    text = str(state)
    return text.replace("_", " ") if text.islower() else text


def show_detail(value: Any) -> str:
    """Returns a value of the audit trail as people read it: texts as they are, all else as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def show_json(value: Any) -> str:
    """Returns a value as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
