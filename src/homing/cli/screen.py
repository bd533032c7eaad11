"""What a person sees: aligned tables and lines, in colour only where the terminal wants it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from homing.cli.exits import one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_PIPED_WIDTH = 1_000
"""A pipe has no edge: what is piped is never wrapped or cut."""
_NARROWEST = 20
"""A column is not cut below this."""

STYLES = {
    "sent": "green",
    "delivered": "green",
    "accepted": "green",
    "closed": "green",
    "pending": "cyan",
    "sending": "cyan",
    "retrying": "yellow",
    "transient": "yellow",
    "throttled": "yellow",
    "ambiguous": "yellow",
    "half_open": "yellow",
    "in_doubt": "magenta",
    "lost": "magenta",
    "failed": "red",
    "open": "red",
    "bad_content": "red",
    "bad_recipient": "red",
    "dead_address": "red",
    "provider_fault": "red",
    "opted_out": "red",
    "expired": "bright_black",
    "cancelled": "bright_black",
    "skipped": "bright_black",
}
"""One colour per status, outcome and breaker phase, the same in every command."""

Cell = Any
"""Text, a number, None, or rich text with its own style."""


class Screen:
    """Writes for people. Nothing in it is parsed as markup: a subject may contain `[bold]`."""

    def __init__(self, *, no_color: bool = False, stderr: bool = False) -> None:
        self._no_color = no_color
        self._stderr = stderr

    @cached_property
    def console(self) -> Console:
        """The rich console behind it; imported only when something is shown."""
        from rich.console import Console

        stream = sys.stderr if self._stderr else sys.stdout
        wide = None if stream.isatty() or "COLUMNS" in os.environ else _PIPED_WIDTH
        return Console(
            stderr=self._stderr,
            no_color=self._no_color or None,
            width=wide,
            markup=False,
            highlight=False,
            emoji=False,
        )

    @property
    def live(self) -> bool:
        """Whether somebody watches: only then are bars and live pictures worth it."""
        return self.console.is_terminal

    def line(self, *parts: Cell, style: str | None = None) -> None:
        """One line, its parts joined by a blank."""
        from rich.text import Text

        joined = Text(" ").join(_text(part) for part in parts)
        if style:
            joined.stylize(style)
        self.console.print(joined, soft_wrap=True)

    def heading(self, title: str) -> None:
        """Starts a part of the output."""
        self.line("")
        self.line(title, style="bold")

    def fields(self, pairs: Iterable[tuple[str, Cell]]) -> None:
        """Names and values, one a line, the values in one column; empty values are left out."""
        shown = [(name, value) for name, value in pairs if value not in (None, "")]
        width = max((len(name) for name, _ in shown), default=0)
        for name, value in shown:
            self.line(styled(f"{name:<{width}} ", "bright_black"), value)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
        """An aligned table. A name that ends in `>` is a column of numbers, in `~` one that may be cut.

        Rich's own tables shorten every column on a narrow screen; an id that is cut cannot be copied.
        """
        lines = [[_text(cell) for cell in row] for row in rows]
        heads = [styled(column.rstrip(">~"), "bold") for column in columns]
        widths = [max(cell.cell_len for cell in column) for column in zip(heads, *lines, strict=True)]
        for index, column in enumerate(columns):
            if column.endswith("~"):
                others = sum(widths) - widths[index] + 2 * (len(columns) - 1)
                widths[index] = min(widths[index], max(_NARROWEST, self.console.width - others))
        for line in (heads, *lines):
            for cell, column, width in zip(line, columns, widths, strict=True):
                cell.truncate(width, overflow="ellipsis")
                cell.align("right" if column.endswith(">") else "left", width)
            joined = _text("  ").join(line)
            joined.rstrip()
            self.console.print(joined, soft_wrap=True)


def styled(text: str, style: str | None = None) -> Text:
    """Text with a style; a status, outcome or phase has its own."""
    from rich.text import Text

    return Text(one_line(text), style=style or STYLES.get(text, ""))


def _text(cell: Cell) -> Text:
    from rich.text import Text

    if isinstance(cell, Text):
        return cell
    return Text("" if cell is None else one_line(str(cell)))


def print_json(value: Any) -> None:
    """Data for programs, on stdout."""
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    sys.stdout.write(text + "\n")
