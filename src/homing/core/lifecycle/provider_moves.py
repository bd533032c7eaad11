"""Moves of notifications from one provider to another, as logs and metrics report them."""

from __future__ import annotations

from msgspec import Struct

from homing.core.lifecycle.claims import Claim
from homing.core.lifecycle.outcomes import AttemptRecord, FailureReport, Settlement

UNAVAILABLE = "unavailable"
"""Cause of a move before an attempt: the provider was stopped by its breaker, on hold or spent."""

RECEIPT = "receipt"
"""Cause of a move after a provider has reported that a message which it had taken failed."""


class ProviderMove(Struct, frozen=True, gc=False):
    """A notification's move to another provider."""

    id: str
    from_provider: str
    to_provider: str
    cause: str
    """Outcome of the failed attempt, `UNAVAILABLE` or `RECEIPT`."""
    error_code: str | None
    elapsed_ms: int
    """Duration of the failed attempt, or the time since the attempt that the receipt is about. 0 if the move
    came before an attempt."""
    delay_ms: int
    """Wait before the next attempt. 0 if the notification moved at once."""


def move_before_attempt(claim: Claim, settlement: Settlement) -> ProviderMove | None:
    """Returns the move that preceded an attempt, or None if the claim kept its provider.

    If the attempt was not made then, because the new provider had no slot for example, the notification still
    waits for that provider. That is no move if the next round of failover begins instead.
    """
    left = claim.moved_from
    if settlement.attempt is not None:
        to = settlement.attempt.provider
    else:
        to = settlement.provider
        if not left and to != claim.provider:  # the claim is as it was before the move
            left = claim.provider
        if settlement.spent is not None:  # the next round begins
            return None
    return ProviderMove(claim.id, left, to, UNAVAILABLE, None, 0, 0) if left else None


def move_after_attempt(settlement: Settlement, attempt: AttemptRecord) -> ProviderMove | None:
    """Returns the move that follows from a failed attempt, or None if there is none.

    The return to the first provider of the route, with which a new round of failover begins, is no move.
    """
    failed, spent = attempt.provider, settlement.spent
    if settlement.provider == failed or spent is None or failed not in spent:
        return None
    return ProviderMove(
        settlement.id,
        failed,
        settlement.provider,
        attempt.outcome.value,
        attempt.error_code,
        attempt.latency_ms,
        settlement.delay_ms,
    )


def move_after_receipt(failure: FailureReport) -> ProviderMove | None:
    """Returns the move that follows from a reported failure, or None if there is none."""
    if failure.next_provider in ("", failure.provider):
        return None
    return ProviderMove(
        failure.id,
        failure.provider,
        failure.next_provider,
        RECEIPT,
        failure.error_code,
        failure.elapsed_ms,
        failure.delay_ms,
    )
