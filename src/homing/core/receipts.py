"""What a provider's callback does to a notification. Any order and any repeats end in the same status.

A store finds the notification, and asks `attempt_of` which of its attempts the receipt is about and
`absorb` what follows; `rows.receive` applies it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from homing.core.effects import has_effects
from homing.core.failover import next_stop
from homing.core.model import AttemptRecord, Channel, Mode, Reason, Receipt, ReceiptEvent, Status
from homing.core.states import FAILED_BY_RECIPIENT_RANK, RECEIPT_RANK, WAITING

_NOTED = frozenset({ReceiptEvent.OPEN, ReceiptEvent.CLICK, ReceiptEvent.UNSUBSCRIBE})
"""Whatever else was heard, these are put on record; they never move a notification."""


class Standing(Struct, frozen=True, kw_only=True):
    """Where a notification stands when a receipt about one of its provider messages comes in."""

    status: Status
    mode: Mode
    channel: Channel
    address: str
    provider: str
    outlet: str
    attempts: int
    rank: int
    """The highest `RECEIPT_RANK` heard so far about this provider message."""
    newest: bool
    """The message is the one of the latest attempt."""


class Verdict(Struct, frozen=True, kw_only=True):
    """What the receipt changes. `status_after` equal to the status before: nothing but the record."""

    status_after: Status
    rank: int
    reason: Reason | None = None
    provider: str
    outlet: str
    reopened: bool = False
    """Due now at the next provider; the first time, with one attempt granted if none is left."""


def attempt_of(receipt: Receipt, attempts: Sequence[AttemptRecord]) -> int | None:
    """Which of a notification's attempts a receipt is about (its index); None: none that is known yet.

    By the attempt's number where the receipt carries it, else by the provider's message id, else, where
    the receipt names the notification but no attempt, the newest one there whose message id never came
    back (an ambiguous send), or the newest of all there. Always one made at the receipt's own provider.
    """
    here = [index for index, attempt in enumerate(attempts) if attempt.provider == receipt.provider]
    if receipt.notification_id is not None and receipt.attempt:
        numbered = _last(index for index in here if attempts[index].number == receipt.attempt)
        if numbered is not None:
            return numbered
    found = _last(i for i in here if attempts[i].provider_message_id == receipt.provider_message_id)
    if found is None and receipt.notification_id is not None and not receipt.attempt:
        nameless = _last(index for index in here if attempts[index].provider_message_id is None)
        found = _last(here) if nameless is None else nameless
    return found


def same_message(attempts: Sequence[AttemptRecord], index: int) -> list[int]:
    """The attempts that led to the same provider message as this one: with idempotency keys, several."""
    this = attempts[index]
    if this.provider_message_id is None:
        return [index]
    message = (this.provider, this.provider_message_id)
    return [i for i, one in enumerate(attempts) if (one.provider, one.provider_message_id) == message]


def absorb(standing: Standing, receipt: Receipt) -> Verdict | None:
    """The verdict of one receipt; None: known already, or it changes nothing."""
    if receipt.event in _NOTED:
        return _stay(standing, standing.rank)
    rank = _rank(receipt)
    if rank <= standing.rank:
        # A dead address is one whatever else was heard: a bounce may follow an arrival.
        late = receipt.event is ReceiptEvent.FAILED and has_effects(receipt)
        return _stay(standing, standing.rank) if late else None
    match receipt.event:
        case ReceiptEvent.DELIVERED:
            return _to(standing, rank, Status.DELIVERED, None)
        case ReceiptEvent.SPAM_REPORT:
            return _to(standing, rank, Status.FAILED, Reason.SPAM_REPORT)
        case ReceiptEvent.QUEUED | ReceiptEvent.SENT if standing.status is Status.IN_DOUBT:
            return _to(standing, rank, Status.SENT, None)
        case ReceiptEvent.FAILED if standing.newest and standing.status in (Status.SENT, Status.IN_DOUBT):
            return _failed(standing, receipt, rank)
        case ReceiptEvent.FAILED if standing.newest and standing.status in WAITING and _final(receipt):
            return _to(standing, rank, Status.FAILED, Reason.RECEIPT_FAILED)
        case _:
            return _stay(standing, rank)


def blames_recipient(receipt: Receipt) -> bool:
    """The message did not arrive, and no provider is to blame for it."""
    return receipt.recipient_at_fault or receipt.address_dead


def _final(receipt: Receipt) -> bool:
    """A failure that no other provider mends."""
    return blames_recipient(receipt) and not receipt.always_failover


def _rank(receipt: Receipt) -> int:
    if receipt.event is ReceiptEvent.FAILED and _final(receipt):
        return FAILED_BY_RECIPIENT_RANK
    return RECEIPT_RANK[receipt.event]


def _failed(standing: Standing, receipt: Receipt, rank: int) -> Verdict:
    if _final(receipt) or standing.mode is Mode.SYNCHRONOUS:
        return _to(standing, rank, Status.FAILED, Reason.RECEIPT_FAILED)
    route = receipt.routes.get(standing.channel, ())
    known = any(stop.provider == standing.provider for stop in route)
    other = next_stop(route, standing.provider) if known else None
    provider, outlet = standing.provider, standing.outlet
    if other is not None:
        provider, outlet = other.provider, other.outlet(standing.address)
    return Verdict(status_after=Status.RETRYING, rank=rank, provider=provider, outlet=outlet, reopened=True)


def _to(standing: Standing, rank: int, status: Status, reason: Reason | None) -> Verdict:
    return Verdict(
        status_after=status, rank=rank, reason=reason, provider=standing.provider, outlet=standing.outlet
    )


def _stay(standing: Standing, rank: int) -> Verdict:
    return _to(standing, rank, standing.status, None)


def _last(indexes: Iterable[int]) -> int | None:
    return max(indexes, default=None)
