"""Combines several observers into one, and keeps their exceptions away from the engine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence

from homing.core.breaker import Phase
from homing.core.errors import StoreError
from homing.core.model import Acceptance, ClaimBatch, Receipt, ReceiptResult, Submission
from homing.core.observing import NOBODY, Observer, Settled

log = logging.getLogger("homing.observing")


def observed_by(observers: Sequence[Observer]) -> Observer:
    """Returns one observer that calls all of them, or one that does nothing if there are none."""
    return _CombinedObserver(observers) if observers else NOBODY


class _CombinedObserver:
    """Calls several observers. Logs their exceptions instead of raising them."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)

    def accepted(self, batch: Sequence[Submission], answers: Sequence[Acceptance]) -> None:
        self._call_each(lambda one: one.accepted(batch, answers))

    def claimed(self, batch: ClaimBatch) -> None:
        self._call_each(lambda one: one.claimed(batch))

    def settled(self, batch: Sequence[Settled], refused: Collection[str]) -> None:
        self._call_each(lambda one: one.settled(batch, refused))

    def heard(self, receipts: Sequence[Receipt], result: ReceiptResult) -> None:
        self._call_each(lambda one: one.heard(receipts, result))

    def breaker_changed(self, provider: str, phase: Phase) -> None:
        self._call_each(lambda one: one.breaker_changed(provider, phase))

    def store_failed(self, call: str, error: StoreError) -> None:
        self._call_each(lambda one: one.store_failed(call, error))

    def _call_each(self, what: Callable[[Observer], None]) -> None:
        for observer in self._observers:
            try:
                what(observer)
            except Exception:
                log.exception("an observer raised; delivery continues")
