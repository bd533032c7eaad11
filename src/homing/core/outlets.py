"""What one claim may still start at each outlet. Stores count with it while they deal out rows."""

from __future__ import annotations

from collections.abc import Mapping


class OutletRoom:
    """Room by outlet, over all lanes of a claim.

    An outlet `provider@host` has room of its own and counts against its provider's as well, where that is
    given: a provider's limit holds however many hosts it talks to.
    """

    def __init__(self, room: Mapping[str, int], slots: int) -> None:
        self._given = room
        self._slots = slots
        self._used: dict[str, int] = {}
        self.closed = [outlet for outlet, left in room.items() if left <= 0]
        """Outlets, and providers with all their hosts, that were given no room at all."""

    def open(self, outlet: str) -> bool:
        """Whether the claim was given any room there."""
        provider = outlet.partition("@")[0]
        return self._given.get(outlet, self._slots) > 0 and self._given.get(provider, 1) > 0

    def left(self, outlet: str) -> int:
        provider, host, _ = outlet.partition("@")
        here = self._given.get(outlet, self._slots) - self._used.get(outlet, 0)
        if not host or provider not in self._given:
            return here
        return min(here, self._given[provider] - self._used.get(provider, 0))

    def use(self, outlet: str, rows: int = 1) -> None:
        """So many rows were dealt there."""
        provider, host, _ = outlet.partition("@")
        self._used[outlet] = self._used.get(outlet, 0) + rows
        if host:
            self._used[provider] = self._used.get(provider, 0) + rows
