"""The limits of one render. Everything that a template does is charged here as it happens.

Steps and characters are counted, so the same template with the same data gives the same result everywhere. A
limit on CPU time, checked between steps, catches everything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from time import thread_time
from typing import Any

MOST_STEPS = 50_000
"""Maximum number of loop iterations, calls and filters. Large values cost more than one step."""
MOST_CHARACTERS = 1_000_000
"""Maximum length of all text that is output or built along the way."""
MOST_SECONDS = 0.25
"""Maximum CPU time, not wall-clock time, so that a busy machine rejects nothing."""
MOST_NODES = 100_000
"""Maximum size of one list or mapping, including everything in it."""
MOST_DEPTH = 64
"""Maximum nesting depth of one list or mapping."""

_CHECK_EVERY_STEPS = 500


class Stopped(Exception):
    """Raised if a template exceeds a limit or does something that is not allowed."""


class Meter:
    """What is left of the limits for one render."""

    __slots__ = ("characters", "look_below", "started", "steps")

    def __init__(self) -> None:
        self.steps = MOST_STEPS
        self.characters = MOST_CHARACTERS
        self.look_below = MOST_STEPS - _CHECK_EVERY_STEPS
        self.started = -1.0

    def look(self) -> None:
        """Checks the steps and the CPU time. Called once fewer than `check_below` steps are left."""
        if self.steps < 0:
            raise Stopped(f"needs more than {MOST_STEPS:,} steps")
        now = thread_time()
        if self.started < 0:
            self.started = now
        elif now - self.started > MOST_SECONDS:
            raise Stopped(f"needs more than {MOST_SECONDS} s of CPU time")
        self.look_below = self.steps - _CHECK_EVERY_STEPS


_CURRENT_METER: ContextVar[Meter] = ContextVar("homing_template_meter")
_current_meter = _CURRENT_METER.get

# Every piece of text and every loop iteration is charged, so the two hottest functions below inline the
# charge instead of calling the others.


def begin() -> None:
    """Starts a render in this thread or task, with its full limits."""
    _CURRENT_METER.set(Meter())


def step(count: int = 1) -> None:
    """Charges steps. Raises `RenderStopped` if none are left."""
    meter = _current_meter()
    meter.steps -= count
    if meter.steps < meter.look_below:
        meter.look()


def write(characters: int) -> None:
    """Charges text, before or as it is built. Raises `RenderStopped` if the limit is exceeded."""
    meter = _current_meter()
    meter.characters -= characters
    if meter.characters < 0:
        raise Stopped(f"builds more than {MOST_CHARACTERS:,} characters")


def written(text: str) -> str:
    """Charges this text and returns it."""
    meter = _current_meter()
    meter.characters -= len(text)
    if meter.characters < 0:
        write(0)
    return text


def rounds(items: Iterable[Any]) -> Iterator[Any]:
    """Yields the items and charges one step for each."""
    meter = _current_meter()
    for item in items:
        meter.steps -= 1
        if meter.steps < meter.look_below:
            meter.look()
        yield item


def account(value: Any) -> Any:
    """Charges a new value, by the length of its text or by everything in it, and returns it."""
    if isinstance(value, str):
        write(len(value))
    elif isinstance(value, (list, tuple, dict)):
        step(1 + weigh(value) // 8)
    return value


def weigh(value: Any) -> int:
    """Returns the size of a value, counting shared parts each time they occur.

    Raises `RenderStopped` if it is too large.

    Lists that contain each other several times are small in memory, but endless when they are output or
    compared.
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
            if weight <= MOST_NODES:
                pending += [(item, depth + 1) for item in inner if isinstance(item, (str, list, tuple, dict))]
        if weight > MOST_NODES or depth > MOST_DEPTH:
            raise Stopped("builds a list or mapping that is too large")
    return weight
