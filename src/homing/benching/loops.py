"""The event loop that everything here runs on: uvloop where it is installed, as the command line does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


def run(work: Coroutine[Any, Any, _T]) -> _T:
    """Like `asyncio.run`."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    try:
        from uvloop import new_event_loop as factory
    except ImportError:
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(work)
