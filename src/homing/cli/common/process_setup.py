"""Setup of long-running commands: stop signals, telemetry and the garbage collector.

After the first stop signal, the work in flight is finished; the second signal aborts it.
"""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from homing.cli.common.exit_codes import CliError
from homing.cli.common.options import Options, open_engine
from homing.cli.common.reload_watch import watch_for_reload

if TYPE_CHECKING:
    from homing.compose import ConfiguredObservers
    from homing.library import Homing
    from homing.settings import Settings


StopFunction = Callable[[bool], Awaitable[Any]]
"""Function that stops the work. Called with True, it aborts at once, even while an earlier call still waits.
"""


def check_service_installed(instead: str = "") -> None:
    """Raises CliError if a library of the service is missing. `instead` is what works without it."""
    from homing.compose.factories import find_missing  # slow to import

    if missing := find_missing("uvicorn", "httptools", "starlette", "jinja2", "jwt"):
        raise CliError(
            f"the service needs {' and '.join(missing)}; install with pip install 'homing[service]'{instead}"
        )


class StopSignals:
    """Queue of received SIGTERM and SIGINT signals. Must be created inside the running event loop."""

    def __init__(self) -> None:
        self._received: asyncio.Queue[signal.Signals] = asyncio.Queue()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self.add, number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))

    def add(self, number: signal.Signals = signal.SIGTERM) -> None:
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
    first_message: Callable[[], str],
    second_message: Callable[[], str],
) -> bool:
    """Waits until `running` ends or is stopped by signals. Returns True if a second signal aborted it.

    The last two arguments return what to print on the first and the second signal.
    """
    first = asyncio.create_task(signals.next())
    await asyncio.wait([running, first], return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        first.cancel()
        await running  # it ended without a signal: raise its error
        return False
    options.notes.line(f"{first.result().name}: {first_message()}; send the signal again to abort them")
    drain = asyncio.ensure_future(stop(False))
    second = asyncio.create_task(signals.next())
    await asyncio.wait([drain, second], return_when=asyncio.FIRST_COMPLETED)
    hard = not drain.done()
    if hard:
        options.notes.line(f"{second.result().name}: {second_message()}")
        await stop(True)
    second.cancel()
    await asyncio.gather(drain, running, return_exceptions=True)
    return hard


_YOUNG_OBJECTS = 50_000
"""Number of net allocations after which Python collects the young objects."""


def tune_garbage_collector() -> None:
    """Excludes existing objects from collection and makes collections rarer. Call it after startup.

    By default Python examines the young objects after every 700 net allocations (2,000 in newer versions). A
    process with hundreds of requests and attempts in flight reaches that within milliseconds while nearly all
    objects are still in use, so the collection frees nothing. Fewer, larger collections free the same memory.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, 20, 100)


def require_complete_templates(settings: Settings) -> None:
    """Raises `ConfigError` if a template is missing in a locale, and the preset requires all of them."""
    if settings.templates.folder:  # the import takes a while, and most processes have no folder
        from homing.compose import templates

        templates.require_complete_templates(settings)


@asynccontextmanager
async def open_with_telemetry(
    options: Options, settings: Settings, load: Callable[[], Settings], *, count: bool = False
) -> AsyncIterator[tuple[Homing, ConfiguredObservers, StopSignals]]:
    """Opens the engine with the telemetry that the settings configure, and tunes the garbage collector.

    While the store opens, a signal ends the process at once. From the first line of output on, signals are
    queued in the result.

    `load` reads the settings of this process again, after SIGHUP or `homing reload`. If `count` is True,
    metrics are collected even if the settings have no address to serve them on.
    """
    from homing import compose

    def load_checked() -> Settings:
        found = load()
        require_complete_templates(found)
        compose.check_telemetry(found)
        return found

    watchers = compose.build_observers(settings, count=count)
    counted, traced = watchers
    async with AsyncExitStack() as stack:
        if traced is not None:
            stack.push_async_callback(asyncio.to_thread, traced.close)
        homing = await stack.enter_async_context(open_engine(options, settings, watchers.all, sinks=True))
        signals = StopSignals()
        if counted is not None and settings.metrics.listen:
            endpoint = await stack.enter_async_context(compose.build_endpoint(settings, counted, homing))
            options.screen.line(f"metrics on http://{endpoint.address}/metrics")
        elif counted is not None:
            counted.watch(homing)
        await stack.enter_async_context(watch_for_reload(homing, load_checked))
        tune_garbage_collector()
        yield homing, watchers, signals
