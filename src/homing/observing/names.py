"""Limits the values of metric labels to a small set, whatever a notification contains."""

from __future__ import annotations

from collections.abc import Collection

OTHER = "other"


class Bounded:
    """Keeps the first `most` names as they are. Every later name becomes `other`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._seen: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        found = self._seen.get(name)
        if found is not None:
            return found
        if len(self._seen) >= self._most:
            return OTHER
        self._seen[name] = name
        return name


class Known:
    """Keeps names that are known in advance. Every other name becomes `other`."""

    def __init__(self, names: Collection[str] = ()) -> None:
        self._names = frozenset(names)

    def __getitem__(self, name: str) -> str:
        return name if name in self._names else OTHER
