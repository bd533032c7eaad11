"""System clock, random source, time zones, and a waker for the tasks of one process."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from datetime import UTC, tzinfo
from functools import lru_cache, partial
from zoneinfo import ZoneInfo


def _find_steady_clock() -> Callable[[], int]:
    """Returns the clock that counts suspended time, so that a process which wakes up uses no old lease."""
    for name in ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC"):  # macOS counts suspended time in CLOCK_MONOTONIC
        number = getattr(time, name, None)
        if number is not None:
            return partial(time.clock_gettime_ns, number)
    return time.monotonic_ns


_read_steady_ns = _find_steady_clock()


class SystemClock:
    """Wall-clock time, monotonic time and asyncio's sleep."""

    def now_ms(self) -> int:
        """Returns the wall-clock time in milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Returns the monotonic time in milliseconds. It also counts while the machine is suspended."""
        return _read_steady_ns() // 1_000_000

    async def sleep_ms(self, duration_ms: int) -> None:
        """Sleeps for `duration_ms` milliseconds."""
        await asyncio.sleep(duration_ms / 1000)


class LocalWaker:
    """Wakes a waiting task of this process. Does not reach other processes."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def wake(self) -> None:
        """Ends the current or the next `wait`."""
        self._event.set()

    async def wait(self, timeout_ms: int) -> None:
        """Waits until `wake` is called, for at most `timeout_ms`."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._event.wait()
        except TimeoutError:
            return
        finally:
            self._event.clear()


_BLOCK_BYTES = 4096

_forks = [0]

os.register_at_fork(after_in_child=lambda: _forks.append(_forks.pop() + 1))


class SystemRandomSource:
    """A buffered `random.SystemRandom`.

    Safe after a fork. Only the thread of the event loop may use it.
    """

    def __init__(self) -> None:
        self._block = b""
        self._used = 0
        self._read_after_forks = _forks[0]

    def getrandbits(self, k: int, /) -> int:
        """Returns `k` random bits. No bit is used twice."""
        size = (k + 7) // 8
        end = self._used + size
        # After a fork, the parent process uses the same block, so the child must not.
        if end > len(self._block) or self._read_after_forks != _forks[0]:
            self._block = os.urandom(max(_BLOCK_BYTES, size))
            self._read_after_forks = _forks[0]
            self._used, end = 0, size
        found = int.from_bytes(self._block[self._used : end], "little")
        self._used = end
        return found >> (size * 8 - k)

    def random(self) -> float:
        """Returns a random float from 0.0 up to, but not including, 1.0."""
        return self.getrandbits(53) * 2.0**-53


@lru_cache(maxsize=1024)
def find_zone(name: str) -> tzinfo | None:
    """Returns the time zone with this name, or None if the name is unknown."""
    if name == "UTC":
        return UTC  # works even without a tz database
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError):  # unknown name, malformed name, or a folder of the database
        return None


def is_zone(name: str) -> bool:
    """Returns True if there is a time zone with this name."""
    return find_zone(name) is not None
