"""Randomness from the operating system, read in blocks so that creating many ids needs few system calls."""

from __future__ import annotations

import os

_BLOCK_BYTES = 4096
_forks = [0]
os.register_at_fork(after_in_child=lambda: _forks.append(_forks.pop() + 1))


class SystemChance:
    """A buffered `random.SystemRandom`.

    Safe after a fork, but only for use by one thread, the event loop's.
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
