"""Runs benchmarks on uvloop if it is installed, like the command line does."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


def run(work: Coroutine[Any, Any, _T]) -> _T:
    """Works like `asyncio.run`, but cancels the coroutine on SIGTERM, so that it can clean up."""
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
    """Cancels the current task on SIGTERM, as on Ctrl-C, so that databases and files are removed."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
