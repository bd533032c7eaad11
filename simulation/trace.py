"""The trace of a simulation run."""

from __future__ import annotations

from collections import deque
from hashlib import sha256


class Trace:
    """A log with lines of `time process event`.

    The hash covers all lines. Only the newest `keep` lines are stored, or all if `keep` is None.
    """

    def __init__(self, keep: int | None = 20_000) -> None:
        self._hash = sha256()
        self._pending: list[str] = []
        self.lines: deque[str] = deque(maxlen=keep)
        self.length = 0

    def add(self, at_ms: int, who: str, what: str) -> None:
        """Adds one event, `at_ms` after the start of the run."""
        line = f"{at_ms:>9} {who:<6} {what}"
        self.lines.append(line)
        self._pending.append(line)
        self.length += 1
        if len(self._pending) >= 512:
            self._digest()

    @property
    def sha256(self) -> str:
        """Returns the hash of all lines so far."""
        self._digest()
        return self._hash.hexdigest()

    def tail(self, number: int, about: str = "") -> list[str]:
        """Returns the newest `number` lines that contain `about`."""
        chosen = [line for line in self.lines if about in line]
        return chosen[-number:]

    def _digest(self) -> None:
        if self._pending:
            self._hash.update(("\n".join(self._pending) + "\n").encode())
            self._pending.clear()
