"""Combines several observers into one that logs their exceptions, so that they do not disturb the engine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from homing.core.errors import StoreError
from homing.core.lifecycle.claims import Acceptance, ClaimBatch, Submission
from homing.core.lifecycle.receipts import Receipt, ReceiptResult
from homing.core.ports.observers import NULL_OBSERVER, Observer, SettledClaim
from homing.core.routing.breaker import Phase

log = logging.getLogger("homing.observing")


def combine_observers(observers: Sequence[Observer]) -> Observer:
    """Returns an observer that calls all given observers. It does nothing if none are given."""
    return _CombinedObserver(observers) if observers else NULL_OBSERVER


class _CombinedObserver:
    """Calls several observers. Logs their exceptions instead of raising them."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)

    def accepted(self, batch: Sequence[Submission], answers: Sequence[Acceptance]) -> None:
        self._call_each(lambda one: one.accepted(batch, answers))

    def claimed(self, batch: ClaimBatch) -> None:
        self._call_each(lambda one: one.claimed(batch))

    def settled(self, batch: Sequence[SettledClaim], refused: Collection[str]) -> None:
        self._call_each(lambda one: one.settled(batch, refused))

    def receipts_applied(self, receipts: Sequence[Receipt], result: ReceiptResult) -> None:
        self._call_each(lambda one: one.receipts_applied(receipts, result))

    def callback_unreadable(self, provider: str, events: int) -> None:
        self._call_each(lambda one: one.callback_unreadable(provider, events))

    def breaker_changed(self, provider: str, phase: Phase) -> None:
        self._call_each(lambda one: one.breaker_changed(provider, phase))

    def purged(self, removed: Mapping[str, int]) -> None:
        self._call_each(lambda one: one.purged(removed))

    def store_failed(self, call: str, error: StoreError) -> None:
        self._call_each(lambda one: one.store_failed(call, error))

    def _call_each(self, what: Callable[[Observer], None]) -> None:
        for observer in self._observers:
            try:
                what(observer)
            except BaseException:  # an observer may raise anything, even `SystemExit`
                log.exception("an observer raised; delivery continues")
