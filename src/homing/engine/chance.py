"""Randomness of the operating system, drawn in pieces: who makes ids by the thousand pays for few calls."""

from __future__ import annotations

import os

_PIECE_BYTES = 4096
_forks = [0]
os.register_at_fork(after_in_child=lambda: _forks.append(_forks.pop() + 1))


class SystemChance:
    """As good as `random.SystemRandom`, also after a fork. For one thread: that of the event loop."""

    def __init__(self) -> None:
        self._piece = b""
        self._used = 0
        self._drawn_after = _forks[0]

    def getrandbits(self, k: int, /) -> int:
        """`k` bits; none of them is given twice."""
        size = (k + 7) // 8
        end = self._used + size
        if end > len(self._piece) or self._drawn_after != _forks[0]:  # the parent draws from that piece too
            self._piece = os.urandom(max(_PIECE_BYTES, size))
            self._drawn_after = _forks[0]
            self._used, end = 0, size
        found = int.from_bytes(self._piece[self._used : end], "little")
        self._used = end
        return found >> (size * 8 - k)

    def random(self) -> float:
        """From 0.0 up to, and not including, 1.0."""
        return self.getrandbits(53) * 2.0**-53
