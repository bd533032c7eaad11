"""Processes that deliver: they get ready, begin together at a word, and tell how far they are."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Collection, Sequence
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Self

from msgspec import Struct

from homing.benching import Unsound
from homing.benching.loops import run
from homing.cli.collector import calm_collector
from homing.config import Settings
from homing.core.observing import Nobody, Settled
from homing.core.states import WAITING

_spawning = multiprocessing.get_context("spawn")
_COLUMNS = 4
"""Of the board, for each process: ended, attempts, the monotonic time of the last, the most memory it had."""
_LOOK_S = 0.02
_READY_WITHIN_S = 60.0


class Post(Struct, frozen=True):
    """One process's place: the words that it waits for, and its line on the board."""

    ready: Any
    go: Any
    stop: Any
    board: Any
    index: int

    async def begin(self) -> None:
        """Says that it is ready, and waits for the word. Ctrl-C is for whoever started it.

        The garbage collector is set as the command line sets it for a worker.
        """
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        calm_collector()
        self.ready.release()
        await asyncio.to_thread(_until, self.go)

    async def end(self) -> None:
        """Waits until it may stop."""
        await asyncio.to_thread(_until, self.stop)

    def note(self, ended: int, attempts: int) -> None:
        """So many more have ended, so many attempts were made."""
        at = self.index * _COLUMNS
        self.board[at] += ended
        self.board[at + 1] += attempts
        self.board[at + 2] = time.monotonic()

    def note_memory(self) -> None:
        """The most that this process has had so far."""
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self.board[self.index * _COLUMNS + 3] = most * (1 if sys.platform == "darwin" else 1024)


def _until(word: Any) -> None:
    """Until it is said; without whoever would say it, this process has no purpose."""
    parent = multiprocessing.parent_process()
    while not word.wait(timeout=1.0):
        if parent is not None and not parent.is_alive():
            os._exit(1)


Job = Callable[[Post, Any], None]


class Crew:
    """So many processes of one job, for a `with` block."""

    def __init__(self, job: Job, what: Any, processes: int) -> None:
        self._job, self._what, self._count = job, what, processes
        self._processes: list[SpawnProcess] = []

    def __enter__(self) -> Self:
        self._ready, self._go, self._stop = (_spawning.Semaphore(0), _spawning.Event(), _spawning.Event())
        self._board = _spawning.Array("d", _COLUMNS * self._count, lock=False)
        for index in range(self._count):
            post = Post(self._ready, self._go, self._stop, self._board, index)
            process = _spawning.Process(target=self._job, args=(post, self._what), daemon=True)
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
        while not self._ready.acquire(timeout=_LOOK_S):
            if time.monotonic() > until or not self._all_alive:
                raise Unsound(f"a process did not get ready within {_READY_WITHIN_S:.0f} seconds, or died")

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
        """The memory that each of them has in use; [] on a system that does not tell."""
        return [found for pid in self.pids if (found := rss_bytes(pid)) is not None]

    @property
    def cpu_s(self) -> float | None:
        """The processor time that they have had together; None on a system that does not tell."""
        found = [cpu_s(pid) for pid in self.pids]
        return None if None in found else sum(one for one in found if one is not None)

    @property
    def ended(self) -> int:
        return int(sum(self._board[0::_COLUMNS]))

    @property
    def most_memory_bytes(self) -> float:
        """Of the process that needed most, by its own last word."""
        return float(max(self._board[3::_COLUMNS]))

    @property
    def attempts(self) -> int:
        return int(sum(self._board[1::_COLUMNS]))

    def begin(self) -> float:
        """Says the word; when, by the monotonic clock."""
        began = time.monotonic()
        self._go.set()
        return began

    async def finish(self, count: int, within_s: float) -> float:
        """Waits until so many have ended; when the last did."""
        until = time.monotonic() + within_s
        while (ended := self.ended) < count:
            if time.monotonic() > until:
                raise Unsound(f"only {ended:,} of {count:,} had ended after {within_s:.0f} seconds")
            if not self._all_alive:
                raise Unsound(f"a worker process died; {ended:,} of {count:,} had ended")
            await asyncio.sleep(_LOOK_S)
        return float(max(self._board[2::_COLUMNS]))


def rss_bytes(pid: int) -> int | None:
    """As Linux tells it."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def cpu_s(pid: int) -> float | None:
    """As Linux tells it: in the program and in the kernel on its behalf."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class _Counting(Nobody):
    """Writes what was settled on the board, once for each batch."""

    def __init__(self, post: Post) -> None:
        self._post = post

    def settled(self, batch: Sequence[Settled], refused: Collection[str]) -> None:
        ended = sum(1 for settlement, _ in batch if settlement.status not in WAITING)
        self._post.note(ended - len(refused), len(batch))


def homing_worker(post: Post, settings: Settings) -> None:
    """The real engine with the real worker."""
    logging.getLogger("homing").setLevel(logging.CRITICAL)  # alerts about failures that are meant
    run(_work(post, settings))


async def _work(post: Post, settings: Settings) -> None:
    from homing.library import Homing

    async with Homing(loaded_settings=settings, observers=[_Counting(post)]) as homing:
        await post.begin()
        homing.start_worker()
        await post.end()
        await homing.stop_worker()
