"""What processes report about their bridges and timers, so that any process can show all of them.

A process with bridges or timers stores its report together with each heartbeat of its worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

import msgspec
from msgspec import Struct

from homing.core.errors import StoreError
from homing.core.ports.bridges import BridgeState
from homing.core.ports.stores import DEAD_AFTER_MS, FORGOTTEN_AFTER_MS, Backend, Entry
from homing.core.ports.timers import TimerState
from homing.core.system_status import BridgeStatus, TimerStatus
from homing.core.times import moment
from homing.engine.operations.policies import EVERY_TENANT

log = logging.getLogger("homing.worker")

_PROCESS = "process"

_MOST_PROCESSES = 500

_FAREWELL_TIMEOUT_S = 2


class ProcessReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The stored report of one process."""

    bridges: Mapping[str, BridgeState] = {}
    timers: Mapping[str, TimerState] = {}


class ProcessReports:
    """Stores the reports of this process, and reads those of all processes."""

    def __init__(self, backend: Backend, name: str, describe: Callable[[], ProcessReport]) -> None:
        self._backend = backend
        self._name = name
        self._describe = describe
        self._stored = False

    async def store(self) -> None:
        """Stores the report, if the process has bridges or timers. Removes reports that are a day old."""
        report = self._describe()
        if not report.bridges and not report.timers:
            return
        if not self._stored:
            await self._forget_old()
        value = msgspec.to_builtins(report)
        entry = Entry(tenant=EVERY_TENANT, kind=_PROCESS, key=self._name, value=value, version=-1)
        await self._backend.put([entry], who="homing")
        self._stored = True

    async def remove(self) -> None:
        """Removes the report of this process when it stops. Otherwise, it counts as dead after a while."""
        if not self._stored:
            return
        self._stored = False
        try:
            async with asyncio.timeout(_FAREWELL_TIMEOUT_S):
                await self._backend.delete(EVERY_TENANT, _PROCESS, [self._name])
        except (StoreError, TimeoutError) as error:
            log.info("cannot remove the report of the stopped process: %s", type(error).__name__)

    async def read(self) -> tuple[tuple[BridgeStatus, ...], tuple[TimerStatus, ...]]:
        """Returns the bridges and timers of all processes. Those of this process are current."""
        now, reports = await self._backend.now_ms(), dict[str, tuple[int, ProcessReport]]()
        for entry in await self._backend.list_entries(EVERY_TENANT, _PROCESS, limit=_MOST_PROCESSES):
            if now - entry.updated_at >= FORGOTTEN_AFTER_MS:
                continue
            try:
                reports[entry.key] = entry.updated_at, msgspec.convert(entry.value, ProcessReport)
            except msgspec.ValidationError as error:  # of another release
                log.info("the report of process %s cannot be read: %s", entry.key, error)
        reports[self._name] = now, self._describe()
        bridges, timers = list[BridgeStatus](), list[TimerStatus]()
        for process, (at, report) in sorted(reports.items()):
            seen_at, live = moment(at), now - at < DEAD_AFTER_MS
            bridges += [
                BridgeStatus(
                    process=process, name=name, live=live, seen_at=seen_at, **msgspec.structs.asdict(one)
                )
                for name, one in report.bridges.items()
            ]
            timers += [
                TimerStatus(
                    process=process, name=name, live=live, seen_at=seen_at, **msgspec.structs.asdict(one)
                )
                for name, one in report.timers.items()
            ]
        return tuple(bridges), tuple(timers)

    async def _forget_old(self) -> None:
        found = await self._backend.list_entries(EVERY_TENANT, _PROCESS, limit=_MOST_PROCESSES)
        before = await self._backend.now_ms() - FORGOTTEN_AFTER_MS
        old = [entry.key for entry in found if entry.updated_at < before]
        if old:
            await self._backend.delete(EVERY_TENANT, _PROCESS, old)
