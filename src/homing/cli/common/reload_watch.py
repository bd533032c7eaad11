"""Reads the settings of a running process again, after SIGHUP or `homing reload`."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from homing.core.errors import ConfigError, HomingError, StoreError

if TYPE_CHECKING:
    from homing.engine.operations.reload_requests import ReloadAnswer, ReloadRequest
    from homing.library import Homing
    from homing.settings import Settings

log = logging.getLogger("homing.reload")

LOOK_EVERY_S = 5.0
"""Interval at which a process looks for a request of `homing reload` in the store."""


class ReloadWatch:
    """Waits for SIGHUP and for requests in the store. `load` reads the settings of this process."""

    def __init__(self, homing: Homing, load: Callable[[], Settings]) -> None:
        self._homing = homing
        self._load = load
        self._hung_up = asyncio.Event()
        self._has_terminal = os.isatty(0)
        self._seen = 0
        """Number of the newest request that was handled, or that existed before this process."""

    def handle_hangup(self) -> None:
        """Handles SIGHUP. If it means that the terminal was closed, stops the process instead."""
        if self._has_terminal and not os.isatty(0):
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            self._hung_up.set()

    async def prepare(self) -> None:
        """Notes the newest request. Those that follow are handled by `run`, also if they come before it."""
        newest = await self._newest()
        self._seen = 0 if newest is None else newest.number

    async def run(self) -> None:
        """Reads the settings again whenever that is requested, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._hung_up.wait()
            except TimeoutError:
                pass
            if self._hung_up.is_set():
                self._hung_up.clear()
                await self._reload("signal", "SIGHUP", 0)
            newest = await self._newest()
            if newest is not None and newest.number != self._seen:
                self._seen = newest.number
                await self._answer(newest)

    async def _newest(self) -> ReloadRequest | None:
        """Returns the newest request. None if there is none, or if it cannot be read now."""
        try:
            return await self._homing.reload_requests.newest()
        except StoreError as error:  # tried again soon; whatever else uses the store reports it
            log.debug("cannot read the request of homing reload, the store is unavailable: %s", error)
            return None
        except Exception as error:  # an error must not end the watch
            log.warning("cannot read the request of homing reload: %r", error)
            return None

    async def _answer(self, request: ReloadRequest) -> None:
        answer = await self._reload(request.who, request.why, request.number)
        try:
            await self._homing.reload_requests.answer(answer)
        except StoreError as error:
            log.warning("cannot answer homing reload, the store is unavailable: %s", error)
        except Exception:  # an error must not end the watch
            log.exception("cannot answer homing reload")

    async def _reload(self, who: str, why: str, number: int) -> ReloadAnswer:
        from homing.engine.operations.reload_requests import ReloadAnswer

        worker = self._homing.settings.name
        try:
            done = await self._homing.reload(self._load(), who=who, why=why)
        except HomingError as error:
            what, why = "the change cannot be recorded", str(error)
            if isinstance(error, ConfigError):
                # Without the colon, which in the log would mark the next word as a secret to be hidden.
                what, why = "a setting is wrong", f"{error.field} {why.removeprefix(f'{error.field}: ')}"
            log.error("the settings were not reloaded, because %s; nothing was changed: %s", what, why)
            return ReloadAnswer(worker=worker, number=number, error=str(error))
        except Exception as error:  # the constructor of another package's provider may raise anything
            log.exception(
                "the settings were not reloaded, because of an unexpected error; nothing was changed"
            )
            # The message may contain the credential that was read, so the store does not get it.
            problem = f"unexpected {type(error).__name__}; see the log of the process"
            return ReloadAnswer(worker=worker, number=number, error=problem)
        log.warning(
            "the settings were reloaded; changed: %s; a restart is needed for: %s",
            ", ".join(done.changed) or "nothing",
            ", ".join(done.needs_restart) or "nothing",
        )
        return ReloadAnswer(
            worker=worker, number=number, changed=done.changed, needs_restart=done.needs_restart
        )


@asynccontextmanager
async def watch_for_reload(homing: Homing, load: Callable[[], Settings]) -> AsyncIterator[None]:
    """Handles SIGHUP and requests to reload inside the `async with` block."""
    watch = ReloadWatch(homing, load)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, watch.handle_hangup)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGHUP,))
    await watch.prepare()
    task = asyncio.create_task(watch.run(), name="homing-reload")
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
