"""How a command that goes on is ended: the first signal lets what is under way end, the second does not."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from homing.cli.shared import Options

Stop = Callable[[bool], Awaitable[Any]]
"""Ends the work; True: at once, also while an earlier call waits."""


class Signals:
    """SIGTERM and SIGINT, in the order in which they came. To be made where the event loop runs."""

    def __init__(self) -> None:
        self._told: asyncio.Queue[signal.Signals] = asyncio.Queue()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self.tell, number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))

    def tell(self, number: signal.Signals = signal.SIGTERM) -> None:
        """As if it had come."""
        self._told.put_nowait(number)

    async def next(self) -> signal.Signals:
        return await self._told.get()


async def until_stopped(
    options: Options,
    told: Signals,
    running: asyncio.Task[Any],
    stop: Stop,
    under_way: Callable[[], str],
    left: Callable[[], str],
) -> bool:
    """True where what was under way had to be broken off; `under_way` and `left` tell the reader of it."""
    first = asyncio.create_task(told.next())
    await asyncio.wait([running, first], return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        first.cancel()
        await running  # it broke off by itself: say why
        return False
    options.notes.line(f"{first.result().name}: {under_way()}; again to break them off")
    drain = asyncio.ensure_future(stop(False))
    second = asyncio.create_task(told.next())
    await asyncio.wait([drain, second], return_when=asyncio.FIRST_COMPLETED)
    hard = not drain.done()
    if hard:
        options.notes.line(f"{second.result().name}: {left()}")
        await stop(True)
    second.cancel()
    await asyncio.gather(drain, running, return_exceptions=True)
    return hard
