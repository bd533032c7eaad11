"""What happened in a world, line by line. Two runs of the same seed have the same lines."""

from __future__ import annotations

from collections import deque
from hashlib import sha256


class Trace:
    """Lines of `time process event`. The hash is over all of them; the newest are kept (or all)."""

    def __init__(self, keep: int | None = 20_000) -> None:
        self._hash = sha256()
        self._pending: list[str] = []
        self.lines: deque[str] = deque(maxlen=keep)
        self.length = 0

    def add(self, at_ms: int, who: str, what: str) -> None:
        """One event, `at_ms` after the beginning of the world."""
        line = f"{at_ms:>9} {who:<6} {what}"
        self.lines.append(line)
        self._pending.append(line)
        self.length += 1
        if len(self._pending) >= 512:
            self._digest()

    @property
    def sha256(self) -> str:
        self._digest()
        return self._hash.hexdigest()

    def tail(self, number: int, about: str = "") -> list[str]:
        """The newest lines, those about one notification if it is named."""
        chosen = [line for line in self.lines if about in line]
        return chosen[-number:]

    def _digest(self) -> None:
        if self._pending:
            self._hash.update(("\n".join(self._pending) + "\n").encode())
            self._pending.clear()
