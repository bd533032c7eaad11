"""Reads that may take long: several threads, in which the tenants take turns.

A read ends when its caller no longer waits for it, and after a time limit. So neither many reads of one
tenant nor one slow read keeps the others waiting for long.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from homing.core.errors import StoreBusy, StoreError
from homing.stores.sqlite.writer_thread import ReaderThread, ThreadCall

R = TypeVar("R")

READ_WITHIN_S = 10.0
"""Time after which a read is ended."""

THREADS = 2

_MOST_WAITING = 500
"""Maximum number of reads of one tenant that wait."""

_STEPS_BETWEEN_CHECKS = 20_000
"""Number of steps of SQLite's virtual machine between two looks at the clock: about a millisecond."""


class FairReads:
    """Runs the reads of all tenants. At any time, at most one read of each tenant runs."""

    def __init__(self, connect: Callable[[], sqlite3.Connection], path: Path) -> None:
        """Raises `StoreError` if `connect` does."""
        self._path = path
        self._changed = threading.Condition()
        self._waiting: OrderedDict[str, deque[ThreadCall[Any]]] = OrderedDict()
        """Tenant → its waiting reads. The tenant at the beginning is served next."""
        self._running: set[str] = set()
        self._stopped = False
        self._threads: list[_TimedReader] = []
        try:
            for number in range(1, THREADS + 1):
                self._threads.append(_TimedReader(f"homing-sqlite-reader-{number}", connect, path, self))
        except BaseException:
            self.stop()
            raise

    async def do(self, tenant: str, call: ThreadCall[R]) -> R:
        """Queues a read and returns its result.

        Raises `StoreBusy` if too many reads of the tenant wait, or if this one takes too long.
        """
        with self._changed:
            if self._stopped:
                raise StoreError(f"{self._path} is closed; open the store first.")
            waiting = self._waiting.setdefault(tenant, deque())
            if len(waiting) >= _MOST_WAITING:
                raise StoreBusy(f"{len(waiting)} reads of this tenant are waiting. Try again later.")
            waiting.append(call)
            self._changed.notify()
        return await call.future

    def stop(self) -> None:
        """Blocks until all queued reads are done and the connections are closed."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        for thread in self._threads:
            thread.close()

    def take(self) -> tuple[str, ThreadCall[Any]] | None:
        """Returns the next read and its tenant, or None when there will be no more. Called by the threads."""
        with self._changed:
            while True:
                for tenant in self._waiting:
                    if tenant not in self._running:
                        return tenant, self._take_from(tenant)
                if self._stopped and not self._waiting:
                    return None
                self._changed.wait()

    def end(self, tenant: str) -> None:
        """Lets the tenant's next read run. Called by the threads."""
        with self._changed:
            self._running.discard(tenant)
            self._changed.notify_all()

    def _take_from(self, tenant: str) -> ThreadCall[Any]:
        waiting = self._waiting.pop(tenant)
        call = waiting.popleft()
        if waiting:
            self._waiting[tenant] = waiting  # at the end
        self._running.add(tenant)
        return call


class _TimedReader(ReaderThread):
    """A thread that runs the reads of all tenants, one by one, each within the time limit."""

    def __init__(
        self, name: str, connect: Callable[[], sqlite3.Connection], path: Path, reads: FairReads
    ) -> None:
        self._reads = reads
        self._call: ThreadCall[Any] | None = None
        self._end_at = 0.0
        super().__init__(name, connect, path)

    def join(self) -> None:
        """Blocks until the thread has ended."""
        self._thread.join()

    def close(self) -> None:
        """Closes the connection of a thread that has ended.

        Connections must be closed one after the other: SQLite writes the log to the main file when the last
        one is closed, and of two that are closed at the same time none is the last.
        """
        self._cursor.close()
        self._connection.close()

    def _open_file(self) -> None:
        super()._open_file()
        self._connection.set_progress_handler(self._must_end, _STEPS_BETWEEN_CHECKS)

    def _work(self) -> None:
        while (taken := self._reads.take()) is not None:
            tenant, call = taken
            if not call.future.cancelled():
                self._call, self._end_at = call, time.monotonic() + READ_WITHIN_S
                self._perform_checked([call])
                self._call = None
                if call.error is not None and isinstance(call.error.__cause__, sqlite3.OperationalError):
                    call.error = self._explain(call.error)
                self._return([call])
            self._reads.end(tenant)

    def _must_end(self) -> int:
        """Returns 1 if the running read must end: its caller has left, or its time is over."""
        call = self._call
        return int(call is not None and (call.future.cancelled() or time.monotonic() > self._end_at))

    def _explain(self, error: Exception) -> Exception:
        """Returns the error of a read that was ended, and any other error as it is."""
        code = getattr(error.__cause__, "sqlite_errorcode", None)
        if code != sqlite3.SQLITE_INTERRUPT:
            return error
        return StoreBusy(
            f"The read took longer than {READ_WITHIN_S:.0f} seconds. Select fewer notifications."
        )
