"""The event loop that everything here runs on: uvloop where it is installed, as the command line does."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


def run(work: Coroutine[Any, Any, _T]) -> _T:
    """Like `asyncio.run`, and told to end it drops what it made."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    try:
        from uvloop import new_event_loop as factory
    except ImportError:
        factory = None

    async def ending() -> _T:
        cancel_on_sigterm()
        return await work

    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(ending())


def cancel_on_sigterm() -> None:
    """Whoever is told to end is cancelled, as by Ctrl-C: databases, files and processes are cleared away."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
