"""Output of commands: lines, aligned tables, sparklines and JSON, with colours on a terminal.

Rich is imported only for a terminal. A pipe gets plain text and does not pay for the import.
"""

from __future__ import annotations

import os
import sys
import textwrap
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import compress, pairwise
from typing import TYPE_CHECKING, Any

from homing.cli.common.exit_codes import one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


_MIN_CUT_WIDTH = 20
"""Minimum width, in characters, of a column that may be cut."""

_INDENT = 2
"""Number of spaces, besides those between two columns, before the second line of a row."""


STYLES = {
    "sent": "green",
    "delivered": "green",
    "accepted": "green",
    "closed": "green",
    "live": "green",
    "pending": "cyan",
    "sending": "cyan",
    "retrying": "yellow",
    "transient": "yellow",
    "throttled": "yellow",
    "ambiguous": "yellow",
    "half_open": "yellow",
    "draining": "yellow",
    "in_doubt": "magenta",
    "lost": "magenta",
    "failed": "red",
    "open": "red",
    "dead": "red",
    "bad_content": "red",
    "bad_recipient": "red",
    "dead_address": "red",
    "provider_fault": "red",
    "opted_out": "red",
    "expired": "bright_black",
    "cancelled": "bright_black",
    "skipped": "bright_black",
}
"""One colour per status, outcome, breaker phase and state of a worker, the same in every command."""


class StyledText(str):
    """Text that carries a rich style."""

    style: str

    def __new__(cls, text: str, style: str) -> StyledText:
        made = super().__new__(cls, text)
        made.style = style
        return made


def styled(text: str, style: str | None = None) -> StyledText:
    """Returns the text with a style, by default the colour of that status, outcome or breaker phase."""
    return StyledText(one_line(text), style if style is not None else STYLES.get(text, ""))


Cell = Any
"""Text, styled text, a number, None, or a tuple of these, which are joined."""


class Screen:
    """Writes lines and tables to stdout or stderr. Text is never parsed as markup."""

    def __init__(self, *, no_color: bool = False, stderr: bool = False) -> None:
        self._no_color = no_color
        self._stderr = stderr

    @property
    def live(self) -> bool:
        """True on a capable terminal or with FORCE_COLOR: colours, bars and live displays are used."""
        watched = self._stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")
        return watched or bool(os.environ.get("FORCE_COLOR"))

    @property
    def columns(self) -> int | None:
        """Width of the terminal in characters. None if the output goes to a file or a pipe."""
        return self.console.width if self.live else None

    @cached_property
    def console(self) -> Console:
        """The rich console for this stream."""
        from rich.console import Console

        return Console(
            stderr=self._stderr, no_color=self._no_color or None, markup=False, highlight=False, emoji=False
        )

    def line(self, *parts: Cell, style: str = "") -> None:
        """Prints one line, its parts joined by blanks."""
        spans = [span for part in parts for span in (StyledText(" ", ""), *_spans(part))][1:]
        self._print([StyledText(span, f"{style} {span.style}".strip()) for span in spans])

    def heading(self, title: str) -> None:
        """Prints an empty line and a bold title."""
        self.line("")
        self.line(title, style="bold")

    def fields(self, pairs: Iterable[tuple[str, Cell]]) -> None:
        """Prints one name and value per line, with the values aligned. Skips empty values."""
        shown = [(name, value) for name, value in pairs if value not in (None, "")]
        width = max((len(name) for name, _ in shown), default=0)
        for name, value in shown:
            self.line(styled(f"{name:<{width}} ", "bright_black"), value)

    def table(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[Cell]],
        *,
        empty: str = "",
        first_line: int | None = None,
    ) -> bool:
        """Prints an aligned table. A column name ending in `>` aligns right; one ending in `~` may be cut.

        Without rows, prints the text `empty` instead, if there is one.
        On a terminal that is too narrow, empty columns are left out first. If the rest is still too wide,
        only the first `first_line` columns stay on the first line of each row, and the others follow on a
        second line; None keeps one line per row. Returns True if a cell was cut.
        Rich's tables would shorten every column on a narrow screen, and a shortened id cannot be copied.
        """
        lines = [[_spans(cell) for cell in row] for row in rows]
        if empty and not lines:
            self.line(empty)
            return False
        heads = [[styled(column.rstrip(">~"), "bold")] for column in columns]
        widths = [max(_width(cell) for cell in column) for column in zip(heads, *lines, strict=True)]
        cut_any, split = False, len(columns)
        if lines and self.live and _total(widths) > self.console.width:
            filled = [any(_width(line[index]) for line in lines) for index in range(len(columns))]
            columns, widths = [*compress(columns, filled)], [*compress(widths, filled)]
            heads, *lines = [[*compress(line, filled)] for line in (heads, *lines)]
            split = len(columns)
            if first_line is not None and _narrowest(columns, widths) > self.console.width:
                split = sum(filled[:first_line])
            for index in (index for index, column in enumerate(columns) if column.endswith("~")):
                beside = widths[:split] if index < split else [_INDENT, *widths[split:]]
                most = max(_MIN_CUT_WIDTH, self.console.width - _total(beside) + widths[index])
                cut_any |= widths[index] > most
                widths[index] = min(widths[index], most)
        for line in (heads, *lines):
            cells = [
                _aligned(cell, column, width)
                for cell, column, width in zip(line, columns, widths, strict=True)
            ]
            self._print([span for cell in cells[:split] for span in cell])
            if split < len(cells):
                indent = StyledText(" " * (_INDENT + 2), "")
                self._print([indent, *(span for cell in cells[split:] for span in cell)])
        return cut_any

    def check(self, ok: bool, text: str, advice: str = "", *, max_columns: int | None = None) -> None:
        """Prints the result of one check: a mark, a text and, if there is any, advice.

        A check that is `ok` but has advice is a warning, with a mark of its own. If the line would have more
        than `max_columns` columns, the advice gets separate lines, and long lines are wrapped. A longer word
        stays whole, so that it can be copied.
        """
        whole = f"{text} → {advice}" if advice else text
        mark = styled("!", "yellow") if ok and advice else check_mark(ok)
        if max_columns is None or len(whole) + 2 <= max_columns:
            self.line(mark, whole)
            return
        first, *more = _wrap(text, max_columns - 2)
        self.line(mark, first)
        for line in (*more, *_wrap(f"→ {advice}" if advice else "", max_columns - 2)):
            self.line(f"  {line}")

    def _print(self, spans: list[StyledText]) -> None:
        if not self.live:
            self._stream.write("".join(spans).rstrip() + "\n")
            return
        text = to_rich_text(spans)
        text.rstrip()
        self.console.print(text, soft_wrap=True)

    @property
    def _stream(self) -> Any:
        return sys.stderr if self._stderr else sys.stdout


def _wrap(text: str, columns: int) -> list[str]:
    return textwrap.wrap(
        one_line(text), columns, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def check_mark(ok: bool) -> StyledText:
    """Returns a green check mark, or a red cross."""
    return styled("✓", "green") if ok else styled("✗", "red")


def to_rich_text(spans: Iterable[StyledText]) -> Text:
    """Converts styled text to a rich Text."""
    from rich.text import Text

    return Text.assemble(*((str(span), span.style) for span in spans))


def print_json(value: Any) -> None:
    """Prints the value on stdout as indented JSON."""
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    sys.stdout.write(text + "\n")


def _spans(cell: Cell) -> list[StyledText]:
    if isinstance(cell, tuple):
        return [span for part in cell for span in _spans(part)]
    if isinstance(cell, StyledText):
        return [cell]
    return [StyledText("" if cell is None else one_line(str(cell)), "")]


def _total(widths: Sequence[int]) -> int:
    """Returns the width of a line with these columns."""
    return sum(widths) + 2 * (len(widths) - 1)


def _narrowest(columns: Sequence[str], widths: Sequence[int]) -> int:
    """Returns the width of a line whose cells are cut as far as possible."""
    return _total(
        [
            min(width, _MIN_CUT_WIDTH) if column.endswith("~") else width
            for column, width in zip(columns, widths, strict=True)
        ]
    )


def _aligned(cell: list[StyledText], column: str, width: int) -> list[StyledText]:
    """Returns a cell, cut and filled to its width, with the space to the next one."""
    cut = _cut(cell, width)
    fill = StyledText(" " * (width - _width(cut)), "")
    return [*([fill, *cut] if column.endswith(">") else [*cut, fill]), StyledText("  ", "")]


def _width(spans: list[StyledText]) -> int:
    return sum(_cells(character) for span in spans for character in span)


def _cells(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _cut(spans: list[StyledText], width: int) -> list[StyledText]:
    if _width(spans) <= width:
        return spans
    kept: list[StyledText] = []
    left = width - 1
    for span in spans:
        text = ""
        for character in span:
            if _cells(character) > left:
                return [*kept, StyledText(text + "…", span.style)]
            left -= _cells(character)
            text += character
        kept.append(StyledText(text, span.style))
    return kept


_BARS = " ▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], top: float | None = None) -> str:
    """Returns one bar character per value, scaled to `top` or else to the highest value."""
    highest = top if top is not None else max(values, default=0)
    if highest <= 0:
        return _BARS[0] * len(values)
    return "".join(_BARS[_height(value, highest)] for value in values)


def downsample(values: Sequence[float], width: int) -> list[float]:
    """Reduces the values to at most `width`. Each is the maximum of its group, so no peak is lost."""
    if len(values) <= width:
        return list(values)
    edges = [round(index * len(values) / width) for index in range(width + 1)]
    return [max(values[low:high]) for low, high in pairwise(edges)]


def downsample_marks(marks: Sequence[bool], width: int) -> list[bool]:
    """Reduces the marks to at most `width`. Each is set if any mark of its group is set."""
    return [value > 0 for value in downsample([float(mark) for mark in marks], width)]


def _height(value: float, highest: float) -> int:
    if value <= 0:
        return 0
    return max(1, min(8, round(8 * value / highest)))
