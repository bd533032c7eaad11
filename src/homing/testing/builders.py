"""Functions that build values for tests. Most arguments have a default, so that a test can omit them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import count
from typing import Any

from homing.core.ids import uuid7
from homing.core.lifecycle.claims import (
    UNLIMITED,
    Claim,
    ClaimRequest,
    LaneCapacity,
    NewNotification,
    ProviderCapacity,
    Submission,
)
from homing.core.lifecycle.outcomes import AttemptRecord, RegistryPut, Settlement
from homing.core.lifecycle.receipts import Receipt, ReceiptEvent
from homing.core.notifications import (
    DEFAULT_TENANT,
    Channel,
    Content,
    Message,
    Mode,
    OutcomeKind,
    Priority,
    Reason,
    Recipient,
    Status,
    lane_of,
)
from homing.core.routing.failover import Route, RouteStep, Spent

DAY_MS = 86_400_000

HOUR_MS = 3_600_000

MINUTE_MS = 60_000

STANDARD_EMAIL = lane_of(Mode.STANDARD, Channel.EMAIL)

STANDARD_SMS = lane_of(Mode.STANDARD, Channel.SMS)

UNLIMITED_SLOTS = UNLIMITED
"""Capacity that no test uses up."""


MAIL_ROUTE: Route = (RouteStep("sendgrid"), RouteStep("acs"))
"""Default route of email receipts: the providers in failover order."""


_numbers = count(1)


def an_id() -> str:
    """Returns a new UUIDv7, which sorts after all ids that were returned earlier."""
    number = next(_numbers)
    return uuid7(1_700_000_000_000 + number, number)


def a_message(body: str = "Your order is on its way.", **metadata: Any) -> Message:
    """Returns a message to one recipient. Keyword arguments become its metadata."""
    return Message(
        recipient=Recipient(id="u-1", email="ada@example.com"),
        content=Content(subject="Hello", body=body),
        metadata=metadata,
    )


def a_notification(
    *,
    id: str | None = None,
    channel: Channel = Channel.EMAIL,
    mode: Mode = Mode.STANDARD,
    lane: str | None = None,
    type: str = "order_confirmed",
    category: str | None = None,
    priority: Priority = Priority.MEDIUM,
    origin: str = "orders",
    provider: str = "sendgrid",
    outlet: str | None = None,
    pinned: bool = False,
    address: str = "ada@example.com",
    message: Message | None = None,
    send_at: int | None = None,
    expires_at: int | None = None,
    max_age_ms: int = DAY_MS,
    dedup_key: str | None = None,
    dedup_window_ms: int = 0,
    resend_of: str | None = None,
    attempts_before: int = 0,
    delay_ms: int = 0,
    max_attempts: int | None = None,
) -> NewNotification:
    """Returns a new notification: by default a standard email that is due at once."""
    return NewNotification(
        id=id or an_id(),
        channel=channel,
        mode=mode,
        lane=lane or lane_of(mode, channel),
        type=type,
        category=category or type,
        priority=priority,
        origin=origin,
        provider=provider,
        outlet=outlet or provider,
        pinned=pinned,
        address=address,
        message=message or a_message(),
        send_at=send_at,
        expires_at=expires_at,
        max_age_ms=max_age_ms,
        dedup_key=dedup_key,
        dedup_window_ms=dedup_window_ms,
        resend_of=resend_of,
        attempts_before=attempts_before,
        delay_ms=delay_ms,
        max_attempts=max_attempts,
    )


def an_sms(*, outlet: str = "twilio", send_at: int | None = None) -> NewNotification:
    """Returns a new standard text message."""
    return a_notification(
        channel=Channel.SMS, provider="twilio", outlet=outlet, address="+4930123456", send_at=send_at
    )


def a_submission(
    *notifications: NewNotification,
    tenant: str = DEFAULT_TENANT,
    batch_id: str | None = None,
    key: str | None = None,
    fingerprint: str = "body",
    lease_to: str | None = None,
    lease_ms: int = 0,
) -> Submission:
    """Returns a submission of these notifications, or of one standard email if none are given."""
    return Submission(
        tenant=tenant,
        batch_id=batch_id or an_id(),
        notifications=notifications or (a_notification(),),
        idempotency_key=key,
        fingerprint=fingerprint,
        lease_to=lease_to,
        lease_ms=lease_ms,
    )


def a_claim_request(
    *lanes: str,
    worker: str = "w-1",
    lease_ms: int = MINUTE_MS,
    slots: int = UNLIMITED_SLOTS,
    held: Mapping[str, int] | None = None,
    tenant_factor: int | None = None,
    providers: Mapping[str, ProviderCapacity] | None = None,
    only_listed: bool = False,
    stand_ins: Mapping[str, str] | None = None,
    outlet_slots: int = UNLIMITED_SLOTS,
    outlet_capacity: Mapping[str, int] | None = None,
    hanging: Collection[str] = (),
    answering: Collection[str] = (),
    limit: int | None = None,
    tenant: str | None = None,
    ids: Collection[str] | None = None,
) -> ClaimRequest:
    """Returns a request to claim the due rows of these lanes.

    Without lanes, the request is for standard email. Without the other arguments, it claims all due rows.
    """
    capacity = LaneCapacity(slots=slots, held=held or {}, tenant_factor=tenant_factor)
    return ClaimRequest(
        worker=worker,
        lease_ms=lease_ms,
        lanes=dict.fromkeys(lanes or (STANDARD_EMAIL,), capacity),
        providers=providers or {},
        only_listed=only_listed,
        stand_ins=stand_ins or {},
        outlet_slots=outlet_slots,
        outlet_capacity=outlet_capacity or {},
        hanging=frozenset(hanging),
        answering=frozenset(answering),
        limit=limit,
        tenant=tenant,
        ids=None if ids is None else frozenset(ids),
    )


def an_attempt(
    claim: Claim,
    kind: OutcomeKind = OutcomeKind.ACCEPTED,
    *,
    message_id: str | None = None,
    error: str | None = None,
    error_code: str | None = None,
    latency_ms: int = 120,
) -> AttemptRecord:
    """Returns the record of a claim's attempt, which the provider accepted unless `kind` is given."""
    return AttemptRecord(
        number=claim.attempt,
        provider=claim.provider,
        outcome=kind,
        started_at=claim.started_at,
        latency_ms=latency_ms,
        worker=claim.worker,
        error_code=error_code,
        error=error,
        provider_message_id=message_id,
    )


def a_settlement(
    claim: Claim,
    status: Status,
    *,
    attempt: AttemptRecord | None,
    reason: Reason | None = None,
    give_back: bool = False,
    delay_ms: int = 0,
    provider: str | None = None,
    outlet: str | None = None,
    failures_here: int = 0,
    spent: Mapping[str, int] | None = None,
    moves: int = 0,
    free_move: bool = False,
    last_delay_ms: int = 0,
    hold_ms: int = 0,
    max_age_ms: int = DAY_MS,
    bounce_always: bool | None = None,
    bounce_ms: tuple[int, int] | None = None,
    puts: tuple[RegistryPut, ...] = (),
) -> Settlement:
    """Returns a settlement of this claim, at the claim's own provider unless `provider` is given."""
    return Settlement(
        id=claim.id,
        token=claim.token,
        worker=claim.worker,
        started_at=claim.started_at,
        status=status,
        reason=reason,
        attempt=attempt,
        give_back=give_back,
        delay_ms=delay_ms,
        provider=provider or claim.provider,
        outlet=outlet or provider or claim.outlet,
        failures_here=failures_here,
        spent=spent,
        moves=moves,
        free_move=free_move,
        last_delay_ms=last_delay_ms,
        hold_ms=hold_ms,
        max_age_ms=max_age_ms,
        bounce_always=bounce_always,
        bounce_min_ms=bounce_ms[0] if bounce_ms else None,
        bounce_max_ms=bounce_ms[1] if bounce_ms else None,
        puts=puts,
    )


def sent(
    claim: Claim,
    message_id: str | None = None,
    *,
    bounce_always: bool | None = False,
    bounce_ms: tuple[int, int] | None = (MINUTE_MS, MINUTE_MS),
) -> Settlement:
    """Returns a settlement for an attempt that the provider accepted.

    If the provider later reports a failure, the notification is not sent to it again for a wait between the
    two values in `bounce_ms`. If both bounce arguments are None, the row looks as if an older version of
    Homing had stored it.
    """
    record = an_attempt(claim, message_id=message_id or f"m-{claim.id}-{claim.attempt}")
    return a_settlement(claim, Status.SENT, attempt=record, bounce_always=bounce_always, bounce_ms=bounce_ms)


def unsure(claim: Claim, delay_ms: int) -> Settlement:
    """Returns a settlement for an ambiguous attempt, which is repeated after `delay_ms`."""
    record = an_attempt(claim, OutcomeKind.AMBIGUOUS, error="timed out", error_code="timeout")
    return a_settlement(
        claim, Status.RETRYING, attempt=record, delay_ms=delay_ms, bounce_ms=(MINUTE_MS, MINUTE_MS)
    )


def retry_in(
    claim: Claim,
    delay_ms: int,
    *,
    provider: str | None = None,
    hold_ms: int = 0,
    message_id: str | None = None,
    error: str = "try later",
    error_code: str = "503",
) -> Settlement:
    """Returns a settlement for a transient failure.

    The next attempt is due after `delay_ms`, at `provider` if it is given.
    """
    record = an_attempt(
        claim, OutcomeKind.TRANSIENT, error=error, error_code=error_code, message_id=message_id
    )
    return a_settlement(
        claim,
        Status.RETRYING,
        attempt=record,
        delay_ms=delay_ms,
        provider=provider,
        failures_here=0 if provider else claim.failures_here + 1,
        last_delay_ms=delay_ms,
        hold_ms=hold_ms,
    )


def postponed(claim: Claim, delay_ms: int, reason: Reason | None = Reason.RATE_LIMIT) -> Settlement:
    """Returns a settlement that postpones the claim without an attempt.

    The attempt that the claim counted is given back, unless the claim is overdue and counted none.
    """
    made = claim.attempt if claim.overdue else claim.attempt - 1
    return a_settlement(
        claim,
        Status.RETRYING if made else Status.PENDING,
        attempt=None,
        reason=reason,
        give_back=not claim.overdue,
        delay_ms=delay_ms,
        failures_here=claim.failures_here,
        free_move=claim.free_move,
        last_delay_ms=claim.last_delay_ms,
    )


def moved(claim: Claim, provider: str, *, moves: int = 1) -> Settlement:
    """Returns a settlement for a failure after which the notification moves at once to `provider`."""
    return a_settlement(
        claim,
        Status.RETRYING,
        attempt=an_attempt(claim, OutcomeKind.TRANSIENT, error="try later", error_code="503"),
        provider=provider,
        spent={**claim.spent, claim.provider: Spent.THIS_ROUND},
        moves=moves,
        free_move=True,
    )


def dead(
    claim: Claim,
    *,
    reason: Reason = Reason.RETRIES_EXHAUSTED,
    kind: OutcomeKind = OutcomeKind.TRANSIENT,
    error: str | None = "mailbox on fire",
    error_code: str | None = "550",
    message_id: str | None = None,
    puts: tuple[RegistryPut, ...] = (),
) -> Settlement:
    """Returns a settlement for an attempt that failed for good. The notification becomes a dead letter."""
    record = an_attempt(claim, kind, error=error, error_code=error_code, message_id=message_id)
    return a_settlement(claim, Status.FAILED, attempt=record, reason=reason, puts=puts)


def in_doubt(
    claim: Claim,
    message_id: str | None = None,
    *,
    bounce_ms: tuple[int, int] | None = (MINUTE_MS, MINUTE_MS),
) -> Settlement:
    """Returns a settlement for an ambiguous attempt. Only a receipt or an operator can resolve it.

    `bounce_ms` has the same meaning as in `sent`.
    """
    record = an_attempt(claim, OutcomeKind.AMBIGUOUS, message_id=message_id, error_code="timeout")
    return a_settlement(
        claim,
        Status.IN_DOUBT,
        attempt=record,
        reason=Reason.UNCONFIRMED,
        bounce_always=False,
        bounce_ms=bounce_ms,
    )


FAILURE_CLASSES: tuple[OutcomeKind | None, ...] = (
    None,
    *(kind for kind in OutcomeKind if kind is not OutcomeKind.ACCEPTED),
)
"""Outcomes that a reported failure can have. None stands for an error code that the error table does not
list."""


def a_receipt(
    message_id: str,
    event: ReceiptEvent = ReceiptEvent.DELIVERED,
    *,
    provider: str = "sendgrid",
    event_id: str | None = None,
    at: int = 0,
    notification_id: str | None = None,
    attempt: int = 0,
    outcome: OutcomeKind | None = OutcomeKind.TRANSIENT,
    retry_after_ms: int | None = None,
    unsubscribed_from_all: bool = False,
    always_failover: bool = False,
    backoff_ms: int = 0,
    error: str | None = None,
    error_code: str | None = None,
    route: Route = MAIL_ROUTE,
) -> Receipt:
    """Returns a receipt about one provider message. It has a new event id unless `event_id` is given.

    `outcome` and `retry_after_ms` are used only if the event is a failure.
    """
    failed = event is ReceiptEvent.FAILED
    return Receipt(
        provider=provider,
        provider_message_id=message_id,
        event=event,
        event_id=event_id or an_id(),
        at=at,
        notification_id=notification_id,
        attempt=attempt,
        outcome=outcome if failed else None,
        retry_after_ms=retry_after_ms if failed else None,
        unsubscribed_from_all=unsubscribed_from_all,
        always_failover=always_failover,
        backoff_ms=backoff_ms,
        error_code=error_code,
        error=error,
        routes={Channel.EMAIL: route},
    )
