"""Progress of long commands: a bar on a terminal, otherwise a plain line every two seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from homing.cli.common.options import Options

if TYPE_CHECKING:
    from rich.progress import Progress


_LINE_EVERY_S = 2.0

_BAR_EVERY_S = 0.1
"""Interval between two updates of the bar. A command may report progress much more often."""


class ProgressBar:
    """A progress bar on stderr. `total` is None if it is unknown.

    Nothing is shown in the first `after_s` seconds. `now` is a monotonic clock, in seconds.
    """

    def __init__(
        self,
        options: Options,
        label: str,
        total: int | None = None,
        *,
        after_s: float = 0.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._notes = options.notes
        self._label = label
        self._total = total
        self._live = self._notes.live
        self._progress: Progress | None = None
        self._now = now
        self._began_s = now()
        self._after_s = after_s
        self._next_s = self._began_s + (after_s if self._live else max(after_s, _LINE_EVERY_S))

    def __enter__(self) -> Self:
        if self._live and not self._after_s:
            self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def at(self, done: int, text: str) -> None:
        """Shows that `done` of the total is reached; `text` is shown beside the bar."""
        now = self._now()
        if now < self._next_s:
            return
        if self._live:
            self._next_s = now + _BAR_EVERY_S
            bar = self._progress or self._start()
            bar.update(bar.task_ids[0], completed=done, text=text)
        else:
            self._next_s = now + _LINE_EVERY_S
            share = f" ({100 * done // self._total} %)" if self._total else ""
            self._notes.line(f"{self._label}: {text}{share}")

    def note(self, text: str) -> None:
        """Prints a permanent line above the bar."""
        self._notes.line(text)

    def _start(self) -> Progress:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[text]}", markup=False),
            TimeElapsedColumn(),
            console=self._notes.console,
            transient=True,
            get_time=self._now,
        )
        self._progress.add_task(self._label, total=self._total, text="")
        self._progress.tasks[0].start_time = self._began_s
        self._progress.start()
        return self._progress
