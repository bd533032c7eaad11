"""Simpler forms of a settlement that the store has refused for good.

A provider's text may be one that the store cannot take, for example an emoji in a LATIN1 database. The result
of the attempt must be recorded all the same, because otherwise the attempt counts as lost and is repeated.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from homing.core.lifecycle.claims import Claim
from homing.core.lifecycle.outcomes import AttemptRecord, Settlement
from homing.core.notifications import Mode, Reason, Status

_MAX_TEXT_CHARS = 500

_WHY = "the store refused the result of this attempt, which had the outcome"


def simpler_forms(settlement: Settlement, claim: Claim) -> Iterator[Settlement]:
    """Yields replacements for a settlement that the store refuses, each with less that it may object to.

    The first one has the same decision, but only ASCII texts: every other character is escaped, so that the
    text can still be read. The second one omits the provider's texts and the writes of reference data. The
    last one has no record of the attempt and parks the notification, so that it is not sent again before an
    operator has looked at it.
    """
    attempt = settlement.attempt
    if attempt is not None:
        yield replace(settlement, attempt=_with_escaped_texts(attempt))
        error = f"{_WHY} {attempt.outcome.value}"
        bare = replace(attempt, error=error, error_code=None, provider_message_id=None)
        yield replace(settlement, attempt=bare, puts=())
    yield _parked(settlement, claim)


def _with_escaped_texts(attempt: AttemptRecord) -> AttemptRecord:
    return replace(
        attempt,
        error=_escaped(attempt.error),
        error_code=_escaped(attempt.error_code),
        provider_message_id=_escaped(attempt.provider_message_id),
    )


def _escaped(text: str | None) -> str | None:
    """Returns the text with control characters and everything outside ASCII as backslash escapes."""
    if text is None:
        return None
    return text.encode("unicode_escape").decode("ascii")[:_MAX_TEXT_CHARS]


def _parked(settlement: Settlement, claim: Claim) -> Settlement:
    """Returns a settlement that puts the notification in doubt. A synchronous one fails instead."""
    held, attempted = claim.mode is not Mode.SYNCHRONOUS, settlement.attempt is not None
    return Settlement(
        id=settlement.id,
        token=settlement.token,
        worker=settlement.worker,
        started_at=settlement.started_at,
        status=Status.IN_DOUBT if held else Status.FAILED,
        reason=Reason.UNCONFIRMED if held else Reason.DELIVERY_FAILED,
        provider=claim.provider,
        outlet=claim.outlet,
        max_age_ms=settlement.max_age_ms,
        give_back=settlement.give_back,
        spent=settlement.spent if settlement.give_back else None,
        moves=settlement.moves,
        free_move=settlement.free_move and not attempted,  # not made, so it does not count
    )
