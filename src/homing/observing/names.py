"""The labels of metrics: each of a small set, whatever a notification says."""

from __future__ import annotations

from collections.abc import Collection

OTHER = "other"


class Bounded:
    """The first so many names keep theirs; whoever comes later is `other`."""

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
    """Names that are known beforehand; everybody else is `other`."""

    def __init__(self, names: Collection[str] = ()) -> None:
        self._names = frozenset(names)

    def __getitem__(self, name: str) -> str:
        return name if name in self._names else OTHER
