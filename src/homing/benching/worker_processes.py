"""Worker processes that start together on a signal and report their progress in shared memory."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Self, TypeVar

from msgspec import Struct

from homing.benching import InvalidMeasurement
from homing.cli.common.process_setup import tune_garbage_collector
from homing.core.lifecycle.states import WAITING
from homing.core.ports.observers import NullObserver, SettledClaim
from homing.settings import Settings

_spawn = multiprocessing.get_context("spawn")

_COLUMNS = 4
"""Number of values per process in shared memory: ended notifications, attempts, monotonic time of the last
report, and peak memory in bytes."""

_POLL_S = 0.02

_READY_WITHIN_S = 60.0


class ProcessSlot(Struct, frozen=True):
    """Connects one process with its parent: the events it waits for, and its values in shared memory."""

    ready: Any
    go: Any
    stop: Any
    board: Any
    index: int

    async def begin(self) -> None:
        """Reports that the process is ready and waits for the start signal. Leaves Ctrl-C to the parent.

        Tunes the garbage collector as `homing worker` does.
        """
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        tune_garbage_collector()
        self.ready.release()
        await asyncio.to_thread(_wait_for, self.go)

    async def end(self) -> None:
        """Waits for the stop signal."""
        await asyncio.to_thread(_wait_for, self.stop)

    def note(self, ended: int, attempts: int) -> None:
        """Adds to this process's numbers of ended notifications and of attempts."""
        at = self.index * _COLUMNS
        self.board[at] += ended
        self.board[at + 1] += attempts
        self.board[at + 2] = time.monotonic()

    def note_memory(self) -> None:
        """Records the peak memory of this process."""
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self.board[self.index * _COLUMNS + 3] = most * (1 if sys.platform == "darwin" else 1024)


def _wait_for(event: Any) -> None:
    """Waits for the event. Exits the process if the parent has died."""
    parent = multiprocessing.parent_process()
    while not event.wait(timeout=1.0):
        if parent is not None and not parent.is_alive():
            os._exit(1)


ProcessMain = Callable[[ProcessSlot, Any], None]
"""Main function of a process, called with its slot and the parameters given to `WorkerProcesses`."""


class WorkerProcesses:
    """Runs several processes with the same main function inside a `with` block."""

    def __init__(self, job: ProcessMain, what: Any, processes: int) -> None:
        self._job, self._parameters, self._count = job, what, processes
        self._processes: list[SpawnProcess] = []

    def __enter__(self) -> Self:
        self._ready, self._go, self._stop = (_spawn.Semaphore(0), _spawn.Event(), _spawn.Event())
        self._board = _spawn.Array("d", _COLUMNS * self._count, lock=False)
        for index in range(self._count):
            post = ProcessSlot(self._ready, self._go, self._stop, self._board, index)
            process = _spawn.Process(target=self._job, args=(post, self._parameters), daemon=True)
            process.start()
            self._processes.append(process)
        try:
            for _ in self._processes:
                self._wait_for_one()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _wait_for_one(self) -> None:
        until = time.monotonic() + _READY_WITHIN_S
        while not self._ready.acquire(timeout=_POLL_S):
            if time.monotonic() > until or not self._all_alive:
                raise InvalidMeasurement(
                    f"a process died or was not ready within {_READY_WITHIN_S:.0f} seconds"
                )

    @property
    def _all_alive(self) -> bool:
        return all(process.is_alive() for process in self._processes)

    def __exit__(self, *_: object) -> None:
        self._go.set()
        self._stop.set()
        for process in self._processes:
            process.join(30)
            if process.is_alive():
                process.kill()
                process.join()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes if process.pid is not None]

    @property
    def rss_bytes(self) -> list[int]:
        """Current memory of each process. Empty on a system without /proc."""
        return [found for pid in self.pids if (found := read_rss_bytes(pid)) is not None]

    @property
    def cpu_s(self) -> float | None:
        """Total CPU time of all processes. None on a system without /proc."""
        found = [read_cpu_s(pid) for pid in self.pids]
        return None if None in found else sum(one for one in found if one is not None)

    @property
    def ended(self) -> int:
        return int(sum(self._board[0::_COLUMNS]))

    @property
    def peak_memory_bytes(self) -> float:
        """Highest peak memory that any process recorded with `note_memory`."""
        return float(max(self._board[3::_COLUMNS]))

    @property
    def attempts(self) -> int:
        return int(sum(self._board[1::_COLUMNS]))

    def begin(self) -> float:
        """Sends the start signal to all processes and returns the monotonic time in seconds."""
        began = time.monotonic()
        self._go.set()
        return began

    async def finish(self, count: int, within_s: float) -> float:
        """Waits until `count` notifications have ended. Returns the monotonic time of the last report.

        Raises `InvalidMeasurement` after `within_s` seconds, or if a process dies.
        """
        until = time.monotonic() + within_s
        while (ended := self.ended) < count:
            if time.monotonic() > until:
                raise InvalidMeasurement(
                    f"only {ended:,} of {count:,} notifications had ended after {within_s:.0f} seconds"
                )
            if not self._all_alive:
                raise InvalidMeasurement(
                    f"a worker process died; {ended:,} of {count:,} notifications had ended"
                )
            await asyncio.sleep(_POLL_S)
        return float(max(self._board[2::_COLUMNS]))


def read_rss_bytes(pid: int) -> int | None:
    """Reads the memory of a process from /proc. Returns None without /proc."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def read_cpu_s(pid: int) -> float | None:
    """Reads the user and kernel CPU time of a process from /proc. Returns None without /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class _Counting(NullObserver):
    """Reports settlements to the parent, once per batch."""

    def __init__(self, post: ProcessSlot) -> None:
        self._post = post

    def settled(self, batch: Sequence[SettledClaim], refused: Collection[str]) -> None:
        ended = sum(1 for settlement, _ in batch if settlement.status not in WAITING)
        self._post.note(ended - len(refused), len(batch))


def run_homing_worker(post: ProcessSlot, settings: Settings) -> None:
    """Main function of a process that runs a Homing worker."""
    logging.getLogger("homing").setLevel(logging.CRITICAL)  # hides alerts about intended failures
    run_async(_work(post, settings))


async def _work(post: ProcessSlot, settings: Settings) -> None:
    from homing.library import Homing

    async with Homing(loaded_settings=settings, observers=[_Counting(post)]) as homing:
        await post.begin()
        homing.start_worker()
        await post.end()
        await homing.stop_worker()


_T = TypeVar("_T")


def run_async(work: Coroutine[Any, Any, _T]) -> _T:
    """Works like `asyncio.run`, but with uvloop if it is installed.

    On SIGTERM the coroutine is cancelled, so that it can clean up.
    """
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
    """Cancels the current task on SIGTERM, as on Ctrl-C, so that scratch databases and files are removed."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
