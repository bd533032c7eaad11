"""Stops long-running commands: the first signal waits for what is in flight, the second aborts it."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from homing.cli.common.options import Options, open_engine

if TYPE_CHECKING:
    from homing.cli.common.options import Options
    from homing.compose import ConfiguredObservers
    from homing.library import Homing
    from homing.settings import Settings


StopFunction = Callable[[bool], Awaitable[Any]]
"""Stops the work. With True it aborts at once, even while an earlier call still waits."""


class StopSignals:
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


async def run_until_stopped(
    options: Options,
    signals: StopSignals,
    running: asyncio.Task[Any],
    stop: StopFunction,
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


_YOUNG_OBJECTS = 50_000


def tune_garbage_collector() -> None:
    """Excludes existing objects from collection and makes collections rarer. Call it after startup.

    By default Python examines the young objects after every 700 net allocations. A process with hundreds of
    requests and attempts in flight reaches that within milliseconds while nearly all objects are still in
    use, so the collection frees nothing. Fewer, larger collections free the same memory.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, 20, 100)


@asynccontextmanager
async def open_with_telemetry(
    options: Options, settings: Settings, *, count: bool = False
) -> AsyncIterator[tuple[Homing, ConfiguredObservers]]:
    """Opens the engine with the telemetry of the settings.

    `count` collects metrics even if the settings have no address to serve them on.
    """
    from homing import compose

    watchers = compose.build_observers(settings, count=count)
    counted, traced = watchers
    async with AsyncExitStack() as stack:
        if traced is not None:
            stack.push_async_callback(asyncio.to_thread, traced.close)
        homing = await stack.enter_async_context(open_engine(options, settings, watchers.all))
        if counted is not None and settings.metrics.listen:
            endpoint = await stack.enter_async_context(compose.build_endpoint(settings, counted, homing))
            options.screen.line(f"metrics on http://{endpoint.address}/metrics")
        elif counted is not None:
            counted.watch(homing)
        tune_garbage_collector()
        yield homing, watchers
