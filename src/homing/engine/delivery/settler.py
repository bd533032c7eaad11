"""Collects settlements and writes them to the store in batches.

A batch that is not full waits a few milliseconds for more settlements. A batch that the store refuses for
good is halved until the refused settlement is alone. That one is written in a simpler form, and the others
are written as they are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence

from homing.core.errors import StoreError, StoreRejected
from homing.core.lifecycle.claims import Claim
from homing.core.lifecycle.outcomes import Settlement, SettleResult
from homing.core.lifecycle.receipts import ReceiptResult
from homing.core.lifecycle.refused_settlements import simpler_forms
from homing.core.ports.observers import NULL_OBSERVER, Observer, SettledClaim
from homing.core.ports.runtime import Clock
from homing.core.ports.stores import Store

log = logging.getLogger("homing.settler")


_FIRST_PAUSE_MS, _MAX_PAUSE_MS = 50, 500
"""First and longest pause between tries while the store is unavailable.

The pauses are short, because a notification is sent again if its settlement is not written before the lease
expires.
"""


_MAX_UNRECORDED, _UNRECORDED_PAUSE_MS = 20, 30_000
"""After this many consecutive settlements that the store refuses in every form, the worker claims nothing for
this long: whatever it sent could not be recorded.
"""


class Settler:
    """Writes the settlements of one worker.

    `recheck` returns each batch as it is to be written: a last look at the recipients may end a retry.
    Retries for as long as the store is unavailable. If the process dies first, the
    leases expire and the attempts are settled as lost.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        on_settled: Callable[[Sequence[SettledClaim], Collection[str]], None] = lambda batch, refused: None,
        recheck: Callable[[Sequence[SettledClaim]], Awaitable[Sequence[SettledClaim]]] | None = None,
        observer: Observer = NULL_OBSERVER,
        batch_size: int = 500,
        linger_ms: int = 2,
    ) -> None:
        self._store = store
        self._clock = clock
        self._on_settled = on_settled
        self._recheck = recheck
        self._observer = observer
        self._batch_size = batch_size
        self._linger_ms = linger_ms
        self._waiting: list[SettledClaim] = []
        self._writing: Sequence[SettledClaim] = ()
        self._arrived = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._failing = False
        """True if the last call failed, because the store is unavailable."""
        self._unrecorded = 0
        """Number of settlements that the store has refused in every form since it last took one."""
        self._paused_until_ms = 0
        self.stale = 0
        """Number of settlements that the store rejected: the lease was taken over, or the row is gone."""

    @property
    def backlog(self) -> int:
        """Number of settlements that are not written yet."""
        return len(self._waiting) + len(self._writing)

    def unwritten(self) -> list[Claim]:
        """Returns the claims whose settlements are not written yet."""
        return [claim for _, claim in (*self._writing, *self._waiting)]

    @property
    def blocked(self) -> bool:
        """True while settlements cannot be written. Nothing must be claimed then, because an attempt whose
        result is not recorded is repeated."""
        return self._failing or self._clock.monotonic_ms() < self._paused_until_ms

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
            self._writing = batch
            if self._recheck is not None:
                self._writing = await self._recheck(batch)
            await self._write(self._writing)
            self._writing = ()
            if not self.backlog:
                self._empty.set()

    async def drained(self) -> None:
        """Waits until all queued settlements are written."""
        await self._empty.wait()

    async def _write(self, batch: Sequence[SettledClaim]) -> None:
        """Writes a batch. If the store refuses it for good, writes it in two halves."""
        try:
            result = await self._settle([settlement for settlement, _ in batch])
        except Exception as error:
            if len(batch) == 1:
                await self._write_simpler(*batch[0], error)
                return
            middle = len(batch) // 2
            await self._write(batch[:middle])
            await self._write(batch[middle:])
            return
        self._report(batch, result)

    async def _settle(self, settlements: Sequence[Settlement]) -> SettleResult:
        """Calls the store until it is available, and returns its result.

        Raises `StoreRejected` or an unexpected exception if a repetition would not help.
        """
        pause_ms = _FIRST_PAUSE_MS
        while True:
            try:
                result = await self._store.settle(settlements)
            except StoreRejected:
                self._failing = False
                raise
            except StoreError as error:  # the store is unavailable
                self._failing = True
                log.warning("cannot settle, the store is unavailable; trying again: %s", error)
                self._observer.store_failed("settle", error)
                await self._clock.sleep_ms(pause_ms)
                pause_ms = min(2 * pause_ms, _MAX_PAUSE_MS)
                continue
            except Exception:
                self._failing = False
                raise
            self._failing = False
            self._unrecorded = 0
            return result

    async def _write_simpler(self, settlement: Settlement, claim: Claim, error: Exception) -> None:
        """Writes a refused settlement in the first simpler form that the store takes."""
        if isinstance(error, StoreError):
            self._observer.store_failed("settle", error)
        problem = error if isinstance(error, StoreError) else type(error).__name__
        for form in simpler_forms(settlement, claim):
            try:
                result = await self._settle([form])
            except Exception as refusal:
                log.debug("a simpler form of a result was refused too: %s", type(refusal).__name__)
                continue
            log.warning(
                "the store refused the result of an attempt of %s; it is recorded as %s with less detail: %s",
                settlement.id,
                form.status.value,
                problem,
            )
            self._report([(form, claim)], result)
            return
        log.error(
            "the result of an attempt of %s cannot be recorded; it counts as lost when its lease expires: %s",
            settlement.id,
            problem,
            exc_info=None if isinstance(error, StoreError) else error,
        )
        self._unrecorded += 1
        if self._unrecorded % _MAX_UNRECORDED == 0:
            log.error("the store records no results; nothing is claimed for %d ms", _UNRECORDED_PAUSE_MS)
            self._paused_until_ms = self._clock.monotonic_ms() + _UNRECORDED_PAUSE_MS

    def _report(self, batch: Sequence[SettledClaim], result: SettleResult) -> None:
        refused = {*result.stale, *result.missing}
        self.stale += len(refused)
        if result.stale:
            log.warning("%d settlements came too late: their leases were taken over", len(result.stale))
        if result.missing:
            log.error(
                "the results of %d attempts are dropped, because the store no longer has their notifications:"
                " they were purged while this process was suspended, or a failover or a restore took the"
                " store back to an earlier state",
                len(result.missing),
            )
        self._observer.settled(batch, refused)
        if result.failures:
            self._observer.receipts_applied((), ReceiptResult(failures=result.failures))
        self._on_settled(batch, refused)
