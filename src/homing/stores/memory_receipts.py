"""What the memory store knows of provider messages: whose they are, what was heard, what came early."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from msgspec import Struct

from homing.core.model import Receipt
from homing.core.receipts import Standing, Verdict, absorb
from homing.stores.memory_schedule import Kept

_Message = tuple[str, str]
"""(provider, provider message id)."""


class _Known(Struct):
    id: str
    rank: int = 0


class Receipts:
    """Finds the notification of a receipt, and keeps each event once."""

    def __init__(self) -> None:
        self._known: dict[_Message, _Known] = {}
        self._heard: dict[tuple[str, str], _Message] = {}
        """(provider, event id) → what it was about."""
        self._early: dict[_Message, list[Receipt]] = {}
        self._by_age: deque[tuple[int, tuple[str, str]]] = deque()

    def __len__(self) -> int:
        return len(self._heard)

    def hear(self, receipt: Receipt, now: int) -> bool:
        """Notes the event; False: it was heard before."""
        event = (receipt.provider, receipt.event_id)
        if event in self._heard:
            return False
        self._heard[event] = _message(receipt)
        self._by_age.append((now, event))
        return True

    def link(self, kept: Kept) -> None:
        """The newest attempt has a provider message: receipts about it are this notification's."""
        newest = kept.attempts[-1]
        if newest.provider_message_id is not None:
            message = (newest.provider, newest.provider_message_id)
            if message not in self._known:
                self._known[message] = _Known(kept.row.id)

    def owner(self, receipt: Receipt) -> str | None:
        """The id of the notification that the receipt is about."""
        known = self._known.get(_message(receipt))
        return known.id if known else None

    def keep(self, receipt: Receipt) -> None:
        """It came before its time: kept until its notification is settled."""
        self._early.setdefault(_message(receipt), []).append(receipt)

    def early(self, kept: Kept) -> Iterator[Receipt]:
        """What was kept for any attempt of this notification, no longer kept from here on."""
        if not self._early:
            return
        for attempt in kept.attempts:
            if attempt.provider_message_id is not None:
                yield from self._early.pop((attempt.provider, attempt.provider_message_id), ())

    def verdict(self, kept: Kept, receipt: Receipt) -> Verdict | None:
        """What the receipt does to the notification; the rank that was heard is remembered."""
        row, known = kept.row, self._known[_message(receipt)]
        newest = kept.attempts[-1]
        standing = Standing(
            status=row.status,
            mode=row.mode,
            provider=row.provider,
            outlet=row.outlet,
            attempts=row.attempts,
            rank=known.rank,
            newest=(newest.provider, newest.provider_message_id) == _message(receipt),
        )
        verdict = absorb(standing, receipt)
        if verdict is not None:
            known.rank = verdict.rank
        return verdict

    def forget(self, kept: Kept) -> None:
        """The notification is gone."""
        for attempt in kept.attempts:
            if attempt.provider_message_id is not None:
                message = (attempt.provider, attempt.provider_message_id)
                known = self._known.get(message)
                if known is not None and known.id == kept.row.id:
                    del self._known[message]

    def prune(self, until: int, limit: int) -> int:
        """Forgets at most `limit` events heard up to then, and what is still kept of them."""
        number = 0
        while number < limit and self._by_age and self._by_age[0][0] <= until:
            _, event = self._by_age.popleft()
            message = self._heard.pop(event)
            if message in self._early:
                left = [r for r in self._early.pop(message) if r.event_id != event[1]]
                if left:
                    self._early[message] = left
            number += 1
        return number


def _message(receipt: Receipt) -> _Message:
    return receipt.provider, receipt.provider_message_id
