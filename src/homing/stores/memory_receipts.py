"""Provider message ids and receipts of the memory store."""

from __future__ import annotations

from collections import deque

from msgspec.structs import replace

from homing.core.lifecycle.receipt_decision import ReceiptDecision, decide_receipt, receipt_context
from homing.core.lifecycle.receipts import Receipt
from homing.stores.memory_schedule import Kept

_Waited = tuple[str, str]
"""What a kept receipt waits for: ("", notification id) or (provider, provider message id)."""


class Receipts:
    """Finds the notification of a receipt and stores each event once."""

    def __init__(self) -> None:
        self._owners: dict[tuple[str, str], str] = {}
        """Maps (provider, provider message id) to the id of the notification."""
        self._events: dict[tuple[str, str], _Waited] = {}
        """Maps (provider, event id) to what the receipt waits for."""
        self._early: dict[_Waited, list[Receipt]] = {}
        self._by_age: deque[tuple[int, tuple[str, str]]] = deque()

    def __len__(self) -> int:
        return len(self._events)

    def store_event(self, receipt: Receipt, now: int) -> bool:
        """Stores the event. Returns False if it was stored before."""
        event = (receipt.provider, receipt.event_id)
        if event in self._events:
            return False
        self._events[event] = _waited(receipt)
        self._by_age.append((now, event))
        return True

    def link(self, kept: Kept, index: int) -> None:
        """Assigns the provider message of an attempt to its notification."""
        attempt = kept.attempts[index]
        if attempt.provider_message_id is not None:
            self._owners.setdefault((attempt.provider, attempt.provider_message_id), kept.row.id)

    def owner(self, receipt: Receipt) -> str | None:
        """Returns the id of the notification that the receipt belongs to, or None if it is unknown."""
        if receipt.notification_id is not None:
            return receipt.notification_id
        return self._owners.get((receipt.provider, receipt.provider_message_id))

    def keep(self, receipt: Receipt) -> None:
        """Keeps a receipt until its attempt is known."""
        self._early.setdefault(_waited(receipt), []).append(receipt)

    def early(self, kept: Kept) -> list[Receipt]:
        """Removes and returns the kept receipts of this notification and its provider messages."""
        if not self._early:
            return []
        found = self._early.pop(("", kept.row.id), [])
        for attempt in kept.attempts:
            if attempt.provider_message_id is not None:
                found += self._early.pop((attempt.provider, attempt.provider_message_id), [])
        return found

    def learn(self, kept: Kept, receipt: Receipt, index: int) -> bool:
        """Sets the message id of an attempt that has none. Returns False if nothing was set."""
        attempt = kept.attempts[index]
        if attempt.provider_message_id is not None or not receipt.provider_message_id:
            return False
        known = replace(attempt, provider_message_id=receipt.provider_message_id)
        kept.attempts = (*kept.attempts[:index], known, *kept.attempts[index + 1 :])
        self.link(kept, index)
        return True

    def decision(self, kept: Kept, receipt: Receipt, index: int, now: int) -> ReceiptDecision | None:
        """Decides what the receipt does to the notification and stores its rank."""
        decision = decide_receipt(receipt_context(kept.row, kept.attempts, kept.ranks, index, now), receipt)
        if decision is not None:
            kept.ranks = (*kept.ranks[:index], decision.rank, *kept.ranks[index + 1 :])
        return decision

    def forget(self, kept: Kept) -> None:
        """Removes the provider message ids of a deleted notification."""
        for attempt in kept.attempts:
            if attempt.provider_message_id is not None:
                message = (attempt.provider, attempt.provider_message_id)
                if self._owners.get(message) == kept.row.id:
                    del self._owners[message]

    def prune(self, until: int, limit: int) -> int:
        """Removes at most `limit` events received at or before `until`, with their kept receipts.

        Returns the number of removed events.
        """
        number = 0
        while number < limit and self._by_age and self._by_age[0][0] <= until:
            _, event = self._by_age.popleft()
            waited = self._events.pop(event)
            if waited in self._early:
                left = [r for r in self._early.pop(waited) if (r.provider, r.event_id) != event]
                if left:
                    self._early[waited] = left
            number += 1
        return number


def _waited(receipt: Receipt) -> _Waited:
    if receipt.notification_id is not None:
        return "", receipt.notification_id
    return receipt.provider, receipt.provider_message_id
