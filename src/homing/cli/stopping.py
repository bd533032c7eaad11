"""Stops long-running commands: the first signal waits for what is in flight, the second aborts it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from homing.cli.shared import Options

Stop = Callable[[bool], Awaitable[Any]]
"""Stops the work. With True it aborts at once, even while an earlier call still waits."""


class Signals:
    """Queue of received SIGTERM and SIGINT signals. Must be created inside the running event loop."""

    def __init__(self) -> None:
        self._received: asyncio.Queue[signal.Signals] = asyncio.Queue()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self.tell, number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))

    def tell(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Queues a signal as if the process had received it."""
        self._received.put_nowait(number)

    async def next(self) -> signal.Signals:
        """Waits for the next signal."""
        return await self._received.get()


async def until_stopped(
    options: Options,
    signals: Signals,
    running: asyncio.Task[Any],
    stop: Stop,
    under_way: Callable[[], str],
    left: Callable[[], str],
) -> bool:
    """Waits until `running` ends or is stopped by signals. Returns True if a second signal aborted it.

    `under_way` and `left` return the messages for the first and the second signal.
    """
    first = asyncio.create_task(signals.next())
    await asyncio.wait([running, first], return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        first.cancel()
        await running  # it ended without a signal: raise its error
        return False
    options.notes.line(f"{first.result().name}: {under_way()}; send the signal again to abort them")
    drain = asyncio.ensure_future(stop(False))
    second = asyncio.create_task(signals.next())
    await asyncio.wait([drain, second], return_when=asyncio.FIRST_COMPLETED)
    hard = not drain.done()
    if hard:
        options.notes.line(f"{second.result().name}: {left()}")
        await stop(True)
    second.cancel()
    await asyncio.gather(drain, running, return_exceptions=True)
    return hard
