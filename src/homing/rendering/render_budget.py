"""The limits on rendering one part of a message. Everything that a template does is charged as it happens.

Steps and characters are counted, so the same template with the same data gives the same result everywhere. A
limit on CPU time, checked between steps, catches everything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from time import thread_time
from typing import Any

MAX_STEPS = 50_000
"""Maximum number of steps: loop iterations, calls and filters. Calls and large values cost several steps."""

MAX_CHARACTERS = 1_000_000
"""Maximum number of characters of all text that is output or built along the way."""

MAX_CPU_SECONDS = 0.25
"""Maximum CPU time. Wall-clock time is not limited, so that a busy machine does not make renders fail."""

MAX_NODES = 100_000
"""Maximum size of one list or mapping, as `measure_value` counts it."""

MAX_DEPTH = 64
"""Maximum nesting depth of one list or mapping."""


_CHECK_EVERY_STEPS = 500


class RenderStopped(Exception):
    """Raised if a template exceeds a limit or does something that is not allowed."""


class RenderMeter:
    """Remaining steps and characters of one render, and the start of its CPU time."""

    __slots__ = ("characters", "check_below", "started", "steps")

    def __init__(self) -> None:
        self.steps = MAX_STEPS
        self.characters = MAX_CHARACTERS
        self.check_below = MAX_STEPS - _CHECK_EVERY_STEPS
        self.started = -1.0

    def look(self) -> None:
        """Checks the steps and the CPU time. Called once fewer than `check_below` steps are left."""
        if self.steps < 0:
            raise RenderStopped(f"needs more than {MAX_STEPS:,} steps")
        now = thread_time()
        if self.started < 0:
            self.started = now
        elif now - self.started > MAX_CPU_SECONDS:
            raise RenderStopped(f"needs more than {MAX_CPU_SECONDS} s of CPU time")
        self.check_below = self.steps - _CHECK_EVERY_STEPS


_CURRENT_METER: ContextVar[RenderMeter] = ContextVar("homing_template_meter")

current_meter = _CURRENT_METER.get
"""Returns the meter of the render in this thread or task."""


# Every piece of text and every loop iteration is charged, so the two hottest functions below, and the one in
# `sandbox` that outputs values, inline the charge instead of calling the others.


def start_metering() -> None:
    """Starts the render of one part in this thread or task, with the full limits."""
    _CURRENT_METER.set(RenderMeter())


def charge_steps(count: int = 1) -> None:
    """Charges steps. Raises `RenderStopped` if none are left."""
    meter = current_meter()
    meter.steps -= count
    if meter.steps < meter.check_below:
        meter.look()


def charge_characters(characters: int) -> None:
    """Charges text, before or as it is built. Raises `RenderStopped` if the limit is exceeded."""
    meter = current_meter()
    meter.characters -= characters
    if meter.characters < 0:
        raise RenderStopped(f"builds more than {MAX_CHARACTERS:,} characters")


def charge_text(text: str) -> str:
    """Charges this text and returns it."""
    meter = current_meter()
    meter.characters -= len(text)
    if meter.characters < 0:
        charge_characters(0)
    return text


def charge_iterations(items: Iterable[Any]) -> Iterator[Any]:
    """Yields the items and charges one step for each."""
    meter = current_meter()
    for item in items:
        meter.steps -= 1
        if meter.steps < meter.check_below:
            meter.look()
        yield item


def charge_value(value: Any) -> Any:
    """Charges a new text by its length, or a new list or mapping by its size, and returns the value."""
    if isinstance(value, str):
        charge_characters(len(value))
    elif isinstance(value, (list, tuple, dict)):
        charge_steps(1 + measure_value(value) // 8)
    return value


def measure_value(value: Any) -> int:
    """Returns the approximate size of a value: the number of items in it, at all depths.

    Raises `RenderStopped` if the value is too large or nested too deeply. Parts that occur several times
    count each time, because lists that contain each other are small in memory, but huge when they are
    output.
    """
    weight = 0
    pending: list[tuple[Any, int]] = [(value, 0)]
    while pending:
        one, depth = pending.pop()
        weight += 1
        if isinstance(one, str):
            weight += len(one) // 64
        elif isinstance(one, (list, tuple, dict)):
            weight += len(one)
            inner = one.values() if isinstance(one, dict) else one
            if weight <= MAX_NODES:
                pending += [(item, depth + 1) for item in inner if isinstance(item, (str, list, tuple, dict))]
        if weight > MAX_NODES or depth > MAX_DEPTH:
            raise RenderStopped("builds a list or mapping that is too large")
    return weight
