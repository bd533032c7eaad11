"""What a provider's callback does to a notification. Any order and any repeats end in the same status."""

from __future__ import annotations

from msgspec import Struct

from homing.core.model import Mode, Reason, Receipt, ReceiptEvent, Status
from homing.core.states import FAILED_BY_RECIPIENT_RANK, RECEIPT_RANK, WAITING

_ENGAGEMENT = frozenset({ReceiptEvent.OPEN, ReceiptEvent.CLICK})


class Standing(Struct, frozen=True, kw_only=True):
    """Where a notification stands when a receipt about one of its provider messages comes in."""

    status: Status
    mode: Mode
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


def absorb(standing: Standing, receipt: Receipt) -> Verdict | None:
    """The verdict of one receipt; None: known already, or it changes nothing."""
    rank = _rank(receipt)
    if receipt.event in _ENGAGEMENT or receipt.event is ReceiptEvent.UNSUBSCRIBE:
        return _stay(standing, standing.rank)
    if rank <= standing.rank:
        return None
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


def _final(receipt: Receipt) -> bool:
    """A failure that no other provider mends."""
    return receipt.recipient_at_fault and not receipt.always_failover


def _rank(receipt: Receipt) -> int:
    if receipt.event is ReceiptEvent.FAILED and _final(receipt):
        return FAILED_BY_RECIPIENT_RANK
    return RECEIPT_RANK[receipt.event]


def _failed(standing: Standing, receipt: Receipt, rank: int) -> Verdict:
    if _final(receipt) or standing.mode is Mode.SYNCHRONOUS:
        return _to(standing, rank, Status.FAILED, Reason.RECEIPT_FAILED)
    providers = [provider for provider, _ in receipt.route]
    if standing.provider in providers:
        provider, outlet = receipt.route[(providers.index(standing.provider) + 1) % len(providers)]
    else:
        provider, outlet = standing.provider, standing.outlet
    return Verdict(status_after=Status.RETRYING, rank=rank, provider=provider, outlet=outlet, reopened=True)


def _to(standing: Standing, rank: int, status: Status, reason: Reason | None) -> Verdict:
    return Verdict(
        status_after=status, rank=rank, reason=reason, provider=standing.provider, outlet=standing.outlet
    )


def _stay(standing: Standing, rank: int) -> Verdict:
    return _to(standing, rank, standing.status, None)
