"""The soonest of any number of notifications."""

from __future__ import annotations

from datetime import datetime

from homing.core.model import Notification

_ROOM = 500
"""Beyond what is asked for, so that not every one is a reason to sort."""


class Soonest:
    """The first so many of any number, in bounded memory."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: list[tuple[datetime, str, Notification]] = []

    def add(self, due: datetime, notification: Notification) -> None:
        """One more; kept while it is among the first."""
        self._kept.append((due, notification.id, notification))
        if len(self._kept) >= 2 * self._limit + _ROOM:
            self._sort()

    def found(self) -> tuple[Notification, ...]:
        """Those, in their order."""
        self._sort()
        return tuple(notification for _, _, notification in self._kept)

    def _sort(self) -> None:
        self._kept.sort(key=lambda one: one[:2])
        del self._kept[self._limit :]
