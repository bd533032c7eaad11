"""Logs every failed attempt, failover and failure receipt as one line at level info.

The lines have the notification's id, but neither recipient nor content. With JSON logs, `id`, `provider`,
`outcome`, `code`, `ms` and `next` are fields of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from functools import lru_cache

from homing.core.durations import format_duration
from homing.core.lifecycle.outcomes import AttemptRecord, FailureReport, Settlement
from homing.core.lifecycle.provider_moves import (
    ProviderMove,
    move_after_attempt,
    move_after_receipt,
    move_before_attempt,
)
from homing.core.lifecycle.receipts import Receipt, ReceiptResult
from homing.core.notifications import OutcomeKind, Reason, Status
from homing.core.ports.observers import NullObserver, SettledClaim
from homing.core.redaction import Redacted, redact

log = logging.getLogger("homing.deliveries")

_ACCEPTED = OutcomeKind.ACCEPTED


class DeliveryLog(NullObserver):
    """Observer that logs failures and failovers after the store has committed them.

    Below level info it costs one comparison per batch.
    """

    def settled(self, batch: Sequence[SettledClaim], refused: Collection[str]) -> None:
        if not log.isEnabledFor(logging.INFO):
            return
        for settlement, claim in batch:
            attempt = settlement.attempt
            if attempt is not None and attempt.outcome is _ACCEPTED and not claim.moved_from:
                continue
            if settlement.id in refused:
                continue
            _log_move(move_before_attempt(claim, settlement))
            if attempt is not None and attempt.outcome is not _ACCEPTED:
                _log_attempt(settlement, attempt)
                _log_move(move_after_attempt(settlement, attempt))

    def receipts_applied(self, receipts: Sequence[Receipt], result: ReceiptResult) -> None:
        if not result.failures or not log.isEnabledFor(logging.INFO):
            return
        for failure in result.failures:
            _log_receipt(failure)
            _log_move(move_after_receipt(failure))


def _log_attempt(settlement: Settlement, attempt: AttemptRecord) -> None:
    outcome, code, took_ms = attempt.outcome.value, _code(attempt.error_code), attempt.latency_ms
    next = _next(settlement.status, settlement.reason, settlement.provider, settlement.delay_ms)
    text = (
        f"attempt {attempt.number} of {settlement.id} failed at {attempt.provider}: "
        f"{outcome}{_in_brackets(code)} after {format_duration(took_ms)}; next: {next}"
    )
    _log(text, settlement.id, attempt.provider, outcome, code, took_ms, next)


def _log_receipt(failure: FailureReport) -> None:
    outcome = failure.outcome.value if failure.outcome is not None else failure.event
    code, elapsed_ms = _code(failure.error_code), failure.elapsed_ms
    next = _next(failure.status, None, failure.next_provider, failure.delay_ms)
    text = (
        f"{failure.provider} reported that its message of {failure.id} failed: "
        f"{outcome}{_in_brackets(code)}, {format_duration(elapsed_ms)} after its attempt; next: {next}"
    )
    _log(text, failure.id, failure.provider, outcome, code, elapsed_ms, next)


def _log_move(move: ProviderMove | None) -> None:
    if move is None:
        return
    next = _next(Status.RETRYING, None, move.to_provider, move.delay_ms)
    text = f"failover of {move.id}: {move.from_provider} → {move.to_provider} ({move.cause})"
    _log(text, move.id, move.from_provider, move.cause, _code(move.error_code), move.elapsed_ms, next)


def _log(text: str, id: str, provider: str, outcome: str, code: str, elapsed_ms: int, next: str) -> None:
    fields = {
        "id": id,
        "provider": provider,
        "outcome": outcome,
        "code": code,
        "ms": elapsed_ms,
        "next": next,
    }
    log.info(Redacted(text), extra=fields)


def _next(status: Status, reason: Reason | None, provider: str, delay_ms: int) -> str:
    """Returns what follows: the next attempt with its provider and wait, or the notification's status."""
    if status is Status.RETRYING and provider:
        return f"{provider} in {format_duration(delay_ms)}" if delay_ms else f"{provider} at once"
    return f"{status.value} ({reason.value})" if reason is not None else status.value


@lru_cache(maxsize=1000)
def _code(code: str | None) -> str:
    """Returns a vendor's error code without recipients and secrets. Only the code comes from others."""
    return redact(code) if code else ""


def _in_brackets(code: str) -> str:
    return f" ({code})" if code else ""
