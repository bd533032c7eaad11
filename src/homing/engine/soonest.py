"""Finds the notifications that are due first among any number of them."""

from __future__ import annotations

from datetime import datetime

from homing.core.model import Notification

_SORT_SLACK = 500
"""Extra entries kept before sorting, so that the list is not sorted for every addition."""


class Soonest:
    """Keeps the `limit` notifications that are due first, in bounded memory."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: list[tuple[datetime, str, Notification]] = []

    def add(self, due: datetime, notification: Notification) -> None:
        """Adds a notification with its due time."""
        self._kept.append((due, notification.id, notification))
        if len(self._kept) >= 2 * self._limit + _SORT_SLACK:
            self._sort()

    def found(self) -> tuple[Notification, ...]:
        """Returns the notifications that are due first, ordered by due time."""
        self._sort()
        return tuple(notification for _, _, notification in self._kept)

    def _sort(self) -> None:
        self._kept.sort(key=lambda one: one[:2])
        del self._kept[self._limit :]
