"""Decides what a receipt does to a notification. Any order and repetition of receipts gives the same status.

A store finds the notification, selects the attempt that the receipt is about (`attempt_of`), decides what
changes (`decide_receipt`), and applies the decision to the row (`apply_receipt`).

A reported failure has the class of the provider's error table. Failures caused by the content are final.
Those caused by the recipient are final unless the policy's `bounce_failover` is `always`. A fault of the
provider leads only to another provider. Every other failure leads to the next provider at once, or back to
the same one after its backoff. A code that the table does not list counts as transient for the first message
of a notification that fails with such a code, and as final for the next one. If a cancel was requested while
the message was being sent, a reported failure of any class cancels the notification, unless another message
is taken.

A notification may have several messages, for example if an attempt was repeated because its outcome was
unknown. It counts as taken as long as one of them does: a report that a provider has taken a message ends the
retry or the doubt, and a failure of another message does not start a new attempt then. If all have failed,
the class of the last message's failure decides. Attempts that failed definitely have no message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256

from msgspec import Struct
from msgspec.structs import replace

from homing.core.lifecycle.effects import always_fails_over, has_effects
from homing.core.lifecycle.outcomes import AttemptRecord
from homing.core.lifecycle.receipts import Receipt, ReceiptEvent
from homing.core.lifecycle.rows import (
    CauseRecord,
    Change,
    Row,
    finish,
    record_change,
    updated_holds,
    wait_until,
)
from homing.core.lifecycle.states import FINAL_FAILURE_RANK, RECEIPT_RANK
from homing.core.notifications import Channel, Mode, OutcomeKind, Reason, Status
from homing.core.retry.decide import LONGEST_RETRY_AFTER_MS
from homing.core.routing.failover import RouteStep, Spent, known_refusals, refused_only, rotate_route

_RECORD_ONLY = frozenset({ReceiptEvent.OPEN, ReceiptEvent.CLICK, ReceiptEvent.UNSUBSCRIBE})
"""Events that are always recorded and never change the status."""


_MAY_HAVE_SENT = frozenset({OutcomeKind.ACCEPTED, OutcomeKind.AMBIGUOUS, OutcomeKind.LOST})
"""Outcomes of attempts that have a message, or may have one. All others are definite failures."""


_UNDECIDED = frozenset({Status.RETRYING, Status.IN_DOUBT})
"""Statuses after attempts without a success or final failure. A report that a message was taken ends them."""


class ReceiptContext(Struct, frozen=True, kw_only=True):
    """State of a notification when a receipt about one of its messages arrives."""

    status: Status
    tenant: str
    mode: Mode
    channel: Channel
    address: str
    provider: str
    outlet: str
    rank: int
    """Highest `RECEIPT_RANK` received so far for this message."""
    newest: bool
    """True if the latest attempt sent the message."""
    last_message: bool
    """True if no later attempt can have sent another message, because all of them failed definitely."""
    attempt: int = 0
    """Number of the attempt that the receipt is about."""
    others_taken: bool = False
    """True if a provider has taken another message of the notification and has not reported its failure."""
    now: int
    """Time of the decision, by the store's clock."""
    pinned: bool = False
    cancel_requested: bool = False
    """True if a cancel was requested during the last attempt, which succeeded."""
    holds: Mapping[str, int] = {}
    """Provider → time until which its `Retry-After` forbids an attempt."""
    spent: Mapping[str, int] = {}
    """Provider → `Spent`: why the provider is not tried again in this round of failover, or never again."""
    bounce_always: bool | None = None
    """True if the policy's `bounce_failover` was `always` at the settlement. None if the row has no value."""
    bounce_min_ms: int | None = None
    bounce_max_ms: int | None = None
    """Maximum wait before a re-send at the same provider; `bounce_min_ms` is the minimum. None if the row has
    no value."""
    unknown_before: bool = False
    """True if the notification was already re-sent because another message of it failed with an unlisted
    code."""


class ReceiptDecision(Struct, frozen=True, kw_only=True):
    """What a receipt changes. If `status_after` equals the current status, the receipt is only recorded."""

    status_after: Status
    rank: int
    reason: Reason | None = None
    provider: str
    outlet: str
    reopened: bool = False
    """True if the failure schedules the next attempt. If no attempt is left, one more is granted."""
    delay_ms: int = 0
    """Time until the notification is due, if the notification is reopened. Otherwise 0."""
    last_delay_ms: int = 0
    """Backoff that was drawn, if the notification is reopened. Decorrelated jitter grows from it. Not used
    for a move at once, which draws none."""
    hold_ms: int = 0
    """Time for which the receipt's provider must not be tried again, because its error table asks for it. 0
    if there is no hold."""
    spent: Mapping[str, int] | None = None
    """What is spent from now on, if the failure spends its provider. None keeps the row's value."""
    free_move: bool = False
    """True if the next attempt is a move at once, which does not count."""
    message_failed: bool = False
    """True if the receipt is the first one that reports the failure of its message. The next attempt then has
    a new idempotency key at the provider."""
    unknown_bounce: int = 0
    """Number of the attempt that sent the last message, if that failed with an unlisted code that counts as
    transient. Otherwise 0."""


def attempt_of(receipt: Receipt, attempts: Sequence[AttemptRecord]) -> int | None:
    """Returns the index of the attempt that a receipt is about, or None if it is not known yet.

    An attempt is found by its number if the receipt carries one, else by the provider's message id. If the
    receipt names only the notification, the newest attempt without a message id (an ambiguous send) is taken,
    or else the newest of all. Only attempts at the receipt's provider are considered.
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
    """Returns the indexes of the attempts with the same provider message as the attempt at `index`.

    There are several if the provider answered a repeated idempotency key with the same message id.
    """
    this = attempts[index]
    if this.provider_message_id is None:
        return [index]
    message = (this.provider, this.provider_message_id)
    return [i for i, one in enumerate(attempts) if (one.provider, one.provider_message_id) == message]


def decide_receipt(standing: ReceiptContext, receipt: Receipt) -> ReceiptDecision | None:
    """Returns the decision on one receipt, or None if the receipt is a repetition or changes nothing."""
    if receipt.event in _RECORD_ONLY:
        return _keep_status(standing, standing.rank)
    final = receipt.event is ReceiptEvent.FAILED and _is_final(standing, receipt)
    rank = FINAL_FAILURE_RANK if final else RECEIPT_RANK[receipt.event]
    if rank <= standing.rank:
        # A dead address is recorded whatever the earlier receipts were: a bounce may follow a delivery.
        late = receipt.event is ReceiptEvent.FAILED and has_effects(receipt) and final
        return _keep_status(standing, standing.rank) if late else None
    match receipt.event:
        case ReceiptEvent.DELIVERED:
            return _take(standing, receipt, rank, Status.DELIVERED)
        case ReceiptEvent.SPAM_REPORT:
            return _change_status(standing, rank, Status.FAILED, Reason.SPAM_REPORT)
        case ReceiptEvent.QUEUED | ReceiptEvent.SENT if _may_be_taken(standing):
            return _take(standing, receipt, rank, Status.SENT)
        case ReceiptEvent.FAILED:
            first = standing.rank < RECEIPT_RANK[ReceiptEvent.FAILED]
            return replace(_fail(standing, receipt, rank, final=final), message_failed=first)
        case _:
            return _keep_status(standing, rank)


def _fail(standing: ReceiptContext, receipt: Receipt, rank: int, *, final: bool) -> ReceiptDecision:
    """Decides on a report that a message failed: the first one, or the first final one."""
    undecided = standing.status in _UNDECIDED
    if not (undecided or standing.status is Status.SENT):
        return _keep_status(standing, rank)
    if standing.cancel_requested:
        if standing.others_taken:
            return _keep_status(standing, rank)
        return _change_status(standing, rank, Status.CANCELLED, Reason.OPERATOR)
    if standing.mode is Mode.SYNCHRONOUS or (final and standing.last_message):
        return _change_status(standing, rank, Status.FAILED, Reason.RECEIPT_FAILED)
    # A later attempt decides about an undecided notification, and a taken message about a sent one.
    if standing.others_taken or (undecided and not standing.newest):
        return _keep_status(standing, rank)
    if standing.status is Status.RETRYING and standing.provider != receipt.provider:
        # The next attempt is already scheduled at another provider. If it begins a round, all are available.
        within_round = Spent.THIS_ROUND in standing.spent.values()
        return replace(
            _keep_status(standing, rank),
            hold_ms=_retry_after_ms(receipt),
            spent={receipt.provider: Spent.THIS_ROUND, **standing.spent} if within_round else None,
            unknown_bounce=standing.attempt if receipt.outcome is None else 0,
        )
    return _reopen(standing, receipt, rank)


def _may_be_taken(standing: ReceiptContext) -> bool:
    """Returns True if a report that a message was taken changes the status.

    It also does if a requested cancel took effect because another message failed: the order of the two
    reports must not matter.
    """
    cancelled = standing.status is Status.CANCELLED and standing.cancel_requested
    return cancelled or standing.status in _UNDECIDED


def _take(standing: ReceiptContext, receipt: Receipt, rank: int, status: Status) -> ReceiptDecision:
    """Ends the retry or the doubt of a notification, because a provider has taken or delivered a message.

    The notification belongs to that provider from then on, even if the retry would have gone to another one.
    """
    return replace(
        _change_status(standing, rank, status, None),
        provider=receipt.provider,
        outlet=_outlet_of(standing, receipt),
    )


def _is_final(standing: ReceiptContext, receipt: Receipt) -> bool:
    """Returns True if nothing is sent again after this failure."""
    match receipt.outcome:
        case OutcomeKind.BAD_CONTENT:
            return True
        case OutcomeKind.BAD_RECIPIENT | OutcomeKind.DEAD_ADDRESS | OutcomeKind.OPTED_OUT:
            return not always_fails_over(standing.bounce_always, receipt)
        case OutcomeKind.PROVIDER_FAULT:
            return not _other_providers(standing, receipt)
        case None:
            return standing.unknown_before
        case _:
            return False


def _reopen(standing: ReceiptContext, receipt: Receipt, rank: int) -> ReceiptDecision:
    """Reopens the notification at the next provider that is neither spent nor on hold, at once.

    If there is none, the next round begins after the backoff, with the provider that may be tried first. If
    several may, it is the first one that was spent. After a provider fault, only another provider is used.
    """
    shortest_ms, jitter_ms = _backoff_ms(standing, receipt)
    others, now = _other_providers(standing, receipt), standing.now
    refused = standing.spent.get(receipt.provider) == Spent.REFUSED
    spent = {**standing.spent, receipt.provider: Spent.REFUSED if refused else Spent.THIS_ROUND}
    provider, outlet, delay_ms = receipt.provider, _outlet_of(standing, receipt), 0
    # If an earlier message failed, the provider of the newest attempt may still have to wait its backoff.
    free = [
        step
        for step in others
        if standing.newest and step.provider not in spent and standing.holds.get(step.provider, 0) <= now
    ]
    if free:
        provider, outlet = free[0].provider, free[0].outlet(standing.tenant, standing.address)
    else:
        by_provider = {step.provider: step for step in others}
        first = next((one for one, kind in spent.items() if kind == Spent.THIS_ROUND), receipt.provider)
        holds_ms = {one: standing.holds.get(one, 0) - now for one in by_provider}
        if not holds_ms or not (refused or receipt.outcome is OutcomeKind.PROVIDER_FAULT):
            holds_ms[receipt.provider] = _retry_after_ms(receipt)
        # The jitter is added to a hold as well, so that not all notifications return at its end.
        waits = {one: max(shortest_ms, hold_ms) + jitter_ms for one, hold_ms in holds_ms.items()}
        soonest = min(waits, key=lambda one: (waits[one], one != first))
        if soonest != receipt.provider:
            provider, outlet = soonest, by_provider[soonest].outlet(standing.tenant, standing.address)
        delay_ms, spent = waits[soonest], refused_only(spent)
    return ReceiptDecision(
        status_after=Status.RETRYING,
        rank=rank,
        provider=provider,
        outlet=outlet,
        reopened=True,
        delay_ms=delay_ms,
        last_delay_ms=shortest_ms + jitter_ms,
        hold_ms=_retry_after_ms(receipt),
        spent=spent,
        free_move=bool(free),
        unknown_bounce=standing.attempt if standing.last_message and receipt.outcome is None else 0,
    )


def _outlet_of(standing: ReceiptContext, receipt: Receipt) -> str:
    """Returns the outlet of the receipt's provider for this notification."""
    if receipt.provider == standing.provider:
        return standing.outlet
    steps = (s for s in receipt.routes.get(standing.channel, ()) if s.provider == receipt.provider)
    return next((step.outlet(standing.tenant, standing.address) for step in steps), receipt.provider)


def _other_providers(standing: ReceiptContext, receipt: Receipt) -> list[RouteStep]:
    """Returns the other providers in route order, without those that rejected the notification."""
    if standing.pinned:
        return []
    route = rotate_route(receipt.routes.get(standing.channel, ()), receipt.provider)
    return [
        step
        for step in route
        if step.provider != receipt.provider and standing.spent.get(step.provider) != Spent.REFUSED
    ]


def _backoff_ms(standing: ReceiptContext, receipt: Receipt) -> tuple[int, int]:
    """Returns the shortest backoff, and the jitter that is added to it.

    The jitter comes from a hash of the event's id, so that every store and every repetition gets the same
    value.
    """
    low, high = standing.bounce_min_ms, standing.bounce_max_ms
    if low is None or high is None:
        low = high = receipt.backoff_ms
    drawn = int.from_bytes(sha256(f"{receipt.provider} {receipt.event_id}".encode()).digest()[:4]) / 2**32
    return low, int(drawn * (high - low))


def _retry_after_ms(receipt: Receipt) -> int:
    return min(receipt.retry_after_ms or 0, LONGEST_RETRY_AFTER_MS)


def _change_status(
    standing: ReceiptContext, rank: int, status: Status, reason: Reason | None
) -> ReceiptDecision:
    return ReceiptDecision(
        status_after=status, rank=rank, reason=reason, provider=standing.provider, outlet=standing.outlet
    )


def _keep_status(standing: ReceiptContext, rank: int) -> ReceiptDecision:
    return _change_status(standing, rank, standing.status, None)


def _last(indexes: Iterable[int]) -> int | None:
    return max(indexes, default=None)


def receipt_context(
    row: Row, attempts: Sequence[AttemptRecord], ranks: Sequence[int], index: int, now: int
) -> ReceiptContext:
    """Returns a row's state for a receipt about the attempt at `index`.

    `ranks` has the highest rank received so far for each attempt.
    """
    same = same_message(attempts, index)
    later, unknown = attempts[same[-1] + 1 :], row.unknown_bounce
    # An attempt whose result the store refused has no record, and may have sent a message.
    all_recorded = attempts[same[-1]].number + len(later) >= row.attempts
    return ReceiptContext(
        status=row.status,
        tenant=row.tenant,
        mode=row.mode,
        channel=row.channel,
        address=row.address,
        provider=row.provider,
        outlet=row.outlet,
        rank=max(ranks[i] for i in same),
        newest=all_recorded and not later,
        last_message=all_recorded and all(one.outcome not in _MAY_HAVE_SENT for one in later),
        attempt=attempts[same[-1]].number,
        others_taken=_any_taken(attempts, ranks, same),
        now=now,
        pinned=row.pinned,
        cancel_requested=row.cancel_requested,
        holds=row.holds,
        spent=known_refusals(row.spent, row.holds, now),
        bounce_always=row.bounce_always,
        bounce_min_ms=row.bounce_min_ms,
        bounce_max_ms=row.bounce_max_ms,
        unknown_before=unknown > 0 and all(attempts[i].number != unknown for i in same),
    )


def _any_taken(attempts: Sequence[AttemptRecord], ranks: Sequence[int], apart_from: Sequence[int]) -> bool:
    """Returns True if a message of other attempts was taken, by an answer or receipt, and did not fail."""
    remaining = set(range(len(attempts))).difference(apart_from)
    while remaining:
        same = same_message(attempts, remaining.pop())
        remaining.difference_update(same)
        rank = max(ranks[i] for i in same)
        accepted = rank > 0 or any(attempts[i].outcome is OutcomeKind.ACCEPTED for i in same)
        if accepted and rank < RECEIPT_RANK[ReceiptEvent.FAILED]:
            return True
    return False


def apply_receipt(row: Row, decision: ReceiptDecision, receipt: Receipt, now: int) -> Change:
    """Applies the decision on a receipt to a row that is not `sending`.

    Receipts for a `sending` row are stored until its settlement.
    """
    assert row.status is not Status.SENDING, "a receipt for a row with an attempt in flight is kept for later"
    before, attempts, after = row.status, row.attempts, decision.status_after
    if row.reason is Reason.SPAM_REPORT:
        after = before  # after a spam report, no later receipt changes the status
    if receipt.event in (ReceiptEvent.OPEN, ReceiptEvent.CLICK):
        row.engagement = {
            **row.engagement,
            receipt.event.value: row.engagement.get(receipt.event.value, 0) + 1,
        }
    if decision.hold_ms:
        row.holds = updated_holds(row, receipt.provider, decision.hold_ms, now)
    if decision.spent is not None:
        row.spent = dict(decision.spent)
    if decision.unknown_bounce:
        row.unknown_bounce = decision.unknown_bounce
    if after is not before or decision.reopened:
        row.status, row.reason = after, decision.reason
        row.provider, row.outlet = decision.provider, decision.outlet
        if receipt.error or receipt.error_code:
            row.last_error, row.error_code = receipt.error, receipt.error_code
        if decision.reopened:
            row.moves += decision.free_move - row.free_move  # one that was not made yet does not count
            row.free_move = decision.free_move
            row.failures_here = 0
            if not decision.free_move:
                row.last_delay_ms = decision.last_delay_ms
            row.sent_at = None
            row.first_failed_at = row.first_failed_at or now
            row.aged_from = now
            wait_until(row, now + decision.delay_ms)
        else:
            requested = row.cancel_requested
            finish(row, now)
            # Another message may still turn out to be taken, and fail then.
            row.cancel_requested = requested and after in (Status.SENT, Status.CANCELLED)
    elif decision.reason is not None and row.reason is not Reason.SPAM_REPORT:
        row.reason = decision.reason
    if decision.message_failed:
        # It rises with every failed message, so that the idempotency key changes with it (`provider_key`).
        row.bounce_floor = max(row.bounce_floor, row.attempts - row.moves) + 1
    cause = CauseRecord(
        kind="receipt",
        name=receipt.event.value,
        at=now,
        before=before,
        after=after,
        who=receipt.provider,
        why=receipt.error_code or receipt.error or "",
    )
    bounced = receipt.event is ReceiptEvent.FAILED and not receipt.recipient_at_fault
    return record_change(row, before, attempts, now, cause=cause, bounced=bounced)
