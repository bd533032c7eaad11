"""Runs the coroutines of a store with a library whose calls block, so that they need no event loop."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

R = TypeVar("R")


def run_without_loop(work: Coroutine[Any, Any, R]) -> R:
    """Runs a coroutine to its end, without an event loop. Raises RuntimeError if it waits for one."""
    try:
        work.send(None)
    except StopIteration as end:
        result: R = end.value
        return result
    work.close()
    raise RuntimeError("the coroutine waits for an event loop, but has none")
