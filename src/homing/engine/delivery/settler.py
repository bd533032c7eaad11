"""Collects settlements and writes them to the store in batches.

A batch that is not full waits a few milliseconds for more settlements.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence

from homing.core.errors import StoreError
from homing.core.lifecycle.claims import Claim
from homing.core.lifecycle.outcomes import Settlement
from homing.core.ports.observers import NULL_OBSERVER, Observer, SettledClaim
from homing.core.ports.runtime import Clock
from homing.core.ports.stores import Store

log = logging.getLogger("homing.settler")


_FIRST_PAUSE_MS, _MAX_PAUSE_MS = 50, 500
"""First and longest pause between tries while the store is unavailable.

The pauses are short, because a notification is sent again if its settlement is not written before the lease
expires.
"""


class Settler:
    """Writes the settlements of one worker.

    Retries for as long as the store is unavailable. If the process dies first, the
    leases expire and the attempts are settled as lost.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        on_settled: Callable[[Sequence[SettledClaim], Collection[str]], None] = lambda batch, refused: None,
        observer: Observer = NULL_OBSERVER,
        batch_size: int = 500,
        linger_ms: int = 2,
    ) -> None:
        self._store = store
        self._clock = clock
        self._on_settled = on_settled
        self._observer = observer
        self._batch_size = batch_size
        self._linger_ms = linger_ms
        self._waiting: list[SettledClaim] = []
        self._writing = 0
        self._arrived = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self.stale = 0
        """Number of settlements that the store rejected: the lease was taken over, or the row is gone."""

    @property
    def backlog(self) -> int:
        """Number of settlements that are not written yet."""
        return len(self._waiting) + self._writing

    def add(self, settlement: Settlement, claim: Claim) -> None:
        """Queues one settlement with its claim."""
        self.add_all([(settlement, claim)])

    def add_all(self, settled: Sequence[SettledClaim]) -> None:
        """Queues settlements, each with its claim."""
        if not settled:
            return
        if not self._waiting:
            self._empty.clear()
            self._arrived.set()
        self._waiting += settled

    async def run(self) -> None:
        """Writes queued settlements until cancelled."""
        while True:
            await self._arrived.wait()
            if len(self._waiting) < self._batch_size:
                await self._clock.sleep_ms(self._linger_ms)
            batch, self._waiting = self._waiting[: self._batch_size], self._waiting[self._batch_size :]
            if not self._waiting:
                self._arrived.clear()
            self._writing = len(batch)
            await self._write(batch)
            self._writing = 0
            if not self.backlog:
                self._empty.set()

    async def drained(self) -> None:
        """Waits until all queued settlements are written."""
        await self._empty.wait()

    async def _write(self, batch: Sequence[SettledClaim]) -> None:
        pause_ms = _FIRST_PAUSE_MS
        while True:
            try:
                result = await self._store.settle([settlement for settlement, _ in batch])
            except StoreError as error:
                log.warning("cannot settle, the store is unavailable; trying again: %s", error)
                self._observer.store_failed("settle", error)
                await self._clock.sleep_ms(pause_ms)
                pause_ms = min(2 * pause_ms, _MAX_PAUSE_MS)
                continue
            except Exception:
                await self._isolate(batch)
                return
            break
        self._report(batch, {*result.stale, *result.missing})

    def _report(self, batch: Sequence[SettledClaim], refused: Collection[str]) -> None:
        if refused:
            self.stale += len(refused)
            log.warning("%d settlements came too late: their leases were taken over", len(refused))
        self._observer.settled(batch, refused)
        self._on_settled(batch, refused)

    async def _isolate(self, batch: Sequence[SettledClaim]) -> None:
        """Writes a batch that failed in two halves, so that one bad settlement does not block the others."""
        if len(batch) == 1:
            log.exception(
                "the settlement of %s cannot be written; the attempt counts as lost when its lease expires",
                batch[0][0].id,
            )
            return
        middle = len(batch) // 2
        await self._write(batch[:middle])
        await self._write(batch[middle:])
