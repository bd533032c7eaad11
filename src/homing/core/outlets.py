"""Free slots per outlet during one claim. Stores use it while they select rows."""

from __future__ import annotations

from collections.abc import Mapping


class OutletRoom:
    """Free slots by outlet, over all lanes of a claim.

    An outlet `provider@host` has slots of its own and also uses those of its provider, if the claim lists
    them. So a provider's limit applies to all its hosts together.
    """

    def __init__(self, room: Mapping[str, int], slots: int) -> None:
        self._given = room
        self._slots = slots
        self._used: dict[str, int] = {}
        self.closed = [outlet for outlet, left in room.items() if left <= 0]
        """Outlets without a free slot, and providers without one, including all their hosts."""

    def open(self, outlet: str) -> bool:
        """Returns True if the claim started with free slots there."""
        provider = outlet.partition("@")[0]
        return self._given.get(outlet, self._slots) > 0 and self._given.get(provider, 1) > 0

    def left(self, outlet: str) -> int:
        """Returns the number of slots that are still free."""
        provider, host, _ = outlet.partition("@")
        here = self._given.get(outlet, self._slots) - self._used.get(outlet, 0)
        if not host or provider not in self._given:
            return here
        return min(here, self._given[provider] - self._used.get(provider, 0))

    def use(self, outlet: str, rows: int = 1) -> None:
        """Records that rows were selected for this outlet."""
        provider, host, _ = outlet.partition("@")
        self._used[outlet] = self._used.get(outlet, 0) + rows
        if host:
            self._used[provider] = self._used.get(provider, 0) + rows
