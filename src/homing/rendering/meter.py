"""What one render may use up. Everything that a template does is charged here, as it happens.

Steps and characters are counted, so the same template with the same data ends in the same way everywhere;
the processor's time is the backstop, looked at between steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from time import thread_time
from typing import Any

MOST_STEPS = 50_000
"""Loop rounds, calls and filters; large values cost more than one."""
MOST_CHARACTERS = 1_000_000
"""Of all text that is written or built on the way."""
MOST_SECONDS = 0.25
"""Of the processor, not of the clock on the wall: a busy machine refuses nothing."""
MOST_NODES = 100_000
"""Of one list or mapping, with all that is in it."""
MOST_DEPTH = 64

_LOOK_EVERY = 500


class Stopped(Exception):
    """A template went beyond what a render may use."""


class Meter:
    """What is left for one render."""

    __slots__ = ("characters", "look_below", "started", "steps")

    def __init__(self) -> None:
        self.steps = MOST_STEPS
        self.characters = MOST_CHARACTERS
        self.look_below = MOST_STEPS - _LOOK_EVERY
        self.started = -1.0

    def look(self) -> None:
        """Below so many steps: are there any left, and time?"""
        if self.steps < 0:
            raise Stopped(f"takes more than {MOST_STEPS:,} steps")
        now = thread_time()
        if self.started < 0:
            self.started = now
        elif now - self.started > MOST_SECONDS:
            raise Stopped(f"takes longer than {MOST_SECONDS} s")
        self.look_below = self.steps - _LOOK_EVERY


_METER: ContextVar[Meter] = ContextVar("homing_template_meter")
_meter = _METER.get

# Every piece of text and every round of a loop is charged: so a charge is a single call, and `written` and
# `rounds` make none for it.


def begin() -> None:
    """A render starts here, in this thread or task, with everything it may use."""
    _METER.set(Meter())


def step(count: int = 1) -> None:
    """Charges work."""
    meter = _meter()
    meter.steps -= count
    if meter.steps < meter.look_below:
        meter.look()


def write(characters: int) -> None:
    """Charges text before it is made, or as it is."""
    meter = _meter()
    meter.characters -= characters
    if meter.characters < 0:
        raise Stopped(f"makes more than {MOST_CHARACTERS:,} characters")


def written(text: str) -> str:
    """The same text, charged."""
    meter = _meter()
    meter.characters -= len(text)
    if meter.characters < 0:
        write(0)
    return text


def rounds(items: Iterable[Any]) -> Iterator[Any]:
    """The same items, each charged as it is taken."""
    meter = _meter()
    for item in items:
        meter.steps -= 1
        if meter.steps < meter.look_below:
            meter.look()
        yield item


def account(value: Any) -> Any:
    """Charges a value that was just made: its text, or all that is in it."""
    if isinstance(value, str):
        write(len(value))
    elif isinstance(value, (list, tuple, dict)):
        step(1 + weigh(value) // 8)
    return value


def weigh(value: Any) -> int:
    """How much is in a value, counted as if nothing in it were shared; more than allowed is refused.

    Lists that hold each other twice over are small in memory and endless when they are written or compared.
    """
    weight = 0
    below: list[tuple[Any, int]] = [(value, 0)]
    while below:
        one, depth = below.pop()
        weight += 1
        if isinstance(one, str):
            weight += len(one) // 64
        elif isinstance(one, (list, tuple, dict)):
            weight += len(one)
            inner = one.values() if isinstance(one, dict) else one
            if weight <= MOST_NODES:
                below += [(item, depth + 1) for item in inner if isinstance(item, (str, list, tuple, dict))]
        if weight > MOST_NODES or depth > MOST_DEPTH:
            raise Stopped("builds a list or mapping that is too large")
    return weight
