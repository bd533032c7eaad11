"""Progress of long commands: a bar on a terminal, otherwise a plain line every two seconds."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from homing.cli.common.options import Options

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


_LINE_EVERY_S = 2.0


class ProgressBar:
    """A progress bar on stderr. `total` is None if it is unknown."""

    def __init__(self, options: Options, label: str, total: int | None = None) -> None:
        self._notes = options.notes
        self._label = label
        self._total = total
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._last_line_s = time.monotonic()

    def __enter__(self) -> Self:
        if self._notes.live:
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            self._progress = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TextColumn("{task.fields[text]}", markup=False),
                TimeElapsedColumn(),
                console=self._notes.console,
                transient=True,
            )
            self._progress.start()
            self._task = self._progress.add_task(self._label, total=self._total, text="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def at(self, done: int, text: str) -> None:
        """Shows that `done` of the total is reached; `text` is shown beside the bar."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, text=text)
            return
        now = time.monotonic()
        if now - self._last_line_s >= _LINE_EVERY_S:
            self._last_line_s = now
            share = f" ({100 * done // self._total} %)" if self._total else ""
            self._notes.line(f"{self._label}: {text}{share}")

    def note(self, text: str) -> None:
        """Prints a permanent line above the bar."""
        self._notes.line(text)
