"""How far a long command has come: a bar for who watches, now and then a plain line for who logs."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from homing.cli.shared import Options

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_LINE_EVERY_S = 2.0


class Bar:
    """Goes to stderr. `total` is None where nobody knows it."""

    def __init__(self, options: Options, label: str, total: int | None = None) -> None:
        self._notes = options.notes
        self._label = label
        self._total = total
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._said_at = time.monotonic()

    def __enter__(self) -> Self:
        if self._notes.live:
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            self._progress = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TextColumn("{task.fields[said]}", markup=False),
                TimeElapsedColumn(),
                console=self._notes.console,
                transient=True,
            )
            self._progress.start()
            self._task = self._progress.add_task(self._label, total=self._total, said="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def at(self, done: int, said: str) -> None:
        """`done` of the total; `said` counts in words."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, said=said)
            return
        now = time.monotonic()
        if now - self._said_at >= _LINE_EVERY_S:
            self._said_at = now
            share = f" ({100 * done // self._total} %)" if self._total else ""
            self._notes.line(f"{self._label}: {said}{share}")

    def note(self, text: str) -> None:
        """A line that stays, above the bar."""
        self._notes.line(text)
