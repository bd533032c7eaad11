"""Decides the result of a claim: a `Settlement` with the new status, delay, provider and registry writes.

`check_before_attempt` decides whether an attempt is made at all. `decide` turns the outcome of an attempt
into a success, retry, failover, dead letter, expiry or doubt. `skip_retry` replaces the retry of a failed
push whose device has become inactive.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec import Struct
from msgspec.structs import replace

from homing.core.lifecycle.claims import Claim
from homing.core.lifecycle.effects import outcome_effects
from homing.core.lifecycle.outcomes import AttemptRecord, Outcome, RegistryPut, Settlement
from homing.core.notifications import (
    UNREADABLE_MESSAGE,
    Channel,
    Mode,
    Notification,
    OutcomeKind,
    Reason,
    Status,
)
from homing.core.recipients.quiet_hours import Window
from homing.core.retry.backoff import bounds_ms, delay_ms
from homing.core.retry.policy import BounceFailover, FailoverWait, OnTimeout, RetryPolicy
from homing.core.routing.failover import Route, RouteStep, Spent, next_step, refused_only

LONGEST_RETRY_AFTER_MS = 24 * 3_600_000


_PERMANENT: dict[OutcomeKind, Reason] = {
    OutcomeKind.BAD_CONTENT: Reason.BAD_CONTENT,
    OutcomeKind.BAD_RECIPIENT: Reason.BAD_RECIPIENT,
    OutcomeKind.DEAD_ADDRESS: Reason.DEAD_ADDRESS,
    OutcomeKind.OPTED_OUT: Reason.OPTED_OUT,
}

# Looked up once: up to Python 3.11, `Status.SENT` calls a method written in Python.
_SYNCHRONOUS = Mode.SYNCHRONOUS

_ACCEPTED, _SENT, _DELIVERED = OutcomeKind.ACCEPTED, Status.SENT, Status.DELIVERED

_PUSH, _RETRYING = Channel.PUSH, Status.RETRYING

_IN_DOUBT, _ALWAYS = Status.IN_DOUBT, BounceFailover.ALWAYS

_UNSURE = frozenset({OutcomeKind.AMBIGUOUS, OutcomeKind.LOST})


class RecipientFacts(Struct, frozen=True, kw_only=True):
    """What the directory and limits reported about one claim, before its attempt."""

    skip: Reason | None = None
    """Reason not to send at all: suppressed, unsubscribed or device inactive. None if the notification may be
    sent."""
    postpone_ms: int = 0
    """Time to wait before the attempt. 0 if the attempt may start now."""
    postpone_reason: Reason | None = None
    """Why the attempt must wait. None if the attempt may start now."""
    time_zone: str | None = None
    """Recipient's current time zone. If None, the time zone in the notification applies."""
    quiet_hours: Window | None = None
    """Recipient's own quiet hours. If None, the quiet hours of the settings apply."""


NO_OBJECTION = RecipientFacts()
"""Facts of a claim that may be sent now."""


def attribute_outcome(claim: Claim, outcome: Outcome, route: Route) -> Outcome:
    """Returns the outcome with the kind that breaker, alerts, attempt record and settlement all use.

    An error that its provider's table does not list is more often a fault of the account than of the message.
    So an unlisted `bad_content` becomes `provider_fault` if the route has another provider that has not
    refused this notification in the same way. Otherwise, and for pinned and synchronous notifications, which
    do not fail over, it stays `bad_content`.
    """
    if not outcome.unlisted or outcome.kind is not OutcomeKind.BAD_CONTENT:
        return outcome
    if claim.pinned or claim.mode is _SYNCHRONOUS:
        return outcome
    others = [step.provider for step in route if step.provider != claim.provider]
    if all(claim.spent.get(other) == Spent.REFUSED for other in others):
        return outcome
    return replace(outcome, kind=OutcomeKind.PROVIDER_FAULT)


def decide(
    claim: Claim,
    outcome: Outcome,
    policy: RetryPolicy,
    route: Route,
    *,
    elapsed_ms: int,
    latency_ms: int,
    u: float,
    stopped: Collection[str] = (),
) -> Settlement:
    """Returns the settlement of one attempt.

    `outcome` is the result of `attribute_outcome`. `route` begins where the notification's rounds begin.
    `elapsed_ms` is the time since the claim, and `latency_ms` that of the send alone. `u` is a random number
    in [0, 1). `stopped` contains the providers whose breakers are open by now.
    """
    record = _record(claim, outcome, latency_ms)
    if outcome.kind is _ACCEPTED:
        return _settle_final(claim, policy, _DELIVERED if outcome.delivered else _SENT, None, record)
    if outcome.kind in _PERMANENT:
        puts = outcome_effects(claim, claim.provider, outcome.kind)
        return _settle_final(claim, policy, Status.FAILED, _PERMANENT[outcome.kind], record, puts=puts)
    if claim.mode is _SYNCHRONOUS:
        timed_out = outcome.kind in _UNSURE or outcome.error_code == "timeout"
        reason = Reason.DELIVERY_TIMEOUT if timed_out else Reason.DELIVERY_FAILED
        return _settle_final(claim, policy, Status.FAILED, reason, record)
    if outcome.kind in _UNSURE and policy.on_timeout is OnTimeout.HOLD:
        return _settle_final(claim, policy, _IN_DOUBT, Reason.UNCONFIRMED, record)
    return _settle_retry(claim, outcome, policy, route, record, elapsed_ms, u, stopped)


def check_before_attempt(
    claim: Claim, policy: RetryPolicy, facts: RecipientFacts, *, now: int
) -> Settlement | None:
    """Returns the settlement of a claim that must not be attempted, or None if the attempt may start."""
    if claim.message is UNREADABLE_MESSAGE:
        return _unattempted(claim, policy, Status.FAILED, Reason.BAD_CONTENT)
    if claim.expires_at is not None and now >= claim.expires_at:
        return _unattempted(claim, policy, Status.EXPIRED, Reason.EXPIRED)
    if facts.skip is not None:
        return _unattempted(claim, policy, Status.SKIPPED, facts.skip)
    if now - claim.aged_from >= policy.max_age_ms and claim.mode is not _SYNCHRONOUS:
        return _unattempted(claim, policy, Status.FAILED, Reason.PROVIDER_UNAVAILABLE)
    if not claim.overdue and claim.attempt - claim.moves > allowed_attempts(claim, policy):
        return _unattempted(claim, policy, Status.FAILED, Reason.RETRIES_EXHAUSTED)
    if claim.overdue:
        # The policy's max age was raised since this deadline was set: keep waiting until `due_at`.
        wait_ms = max(facts.postpone_ms, claim.due_at - now, 0)
        return postpone(claim, policy, wait_ms, facts.postpone_reason)
    if facts.postpone_ms > 0:
        return postpone(claim, policy, facts.postpone_ms, facts.postpone_reason)
    return None


def postpone(claim: Claim, policy: RetryPolicy, for_ms: int, reason: Reason | None) -> Settlement:
    """Returns a settlement that makes the row wait for `for_ms` and does not count its attempt.

    A synchronous notification fails instead, because it is never sent later.
    """
    if claim.mode is _SYNCHRONOUS:
        return _unattempted(claim, policy, Status.FAILED, Reason.DELIVERY_FAILED)
    return _unattempted(claim, policy, waiting_status(attempts_made(claim)), reason, delay_ms=for_ms)


def wait_for_next_round(claim: Claim, policy: RetryPolicy, route: Route, *, now: int, u: float) -> Settlement:
    """Returns the settlement of a claim whose round of failover has no provider left, before its attempt.

    Breakers opened since the last attempt, or providers were put on hold. As after a failed attempt, the next
    round begins after the backoff. A move at once that the claim counted is not made, so it is given back.
    """
    moves = claim.moves - claim.free_move
    counted = attempts_made(claim) - moves
    if claim.mode is _SYNCHRONOUS:
        return postpone(claim, policy, 0, Reason.NO_PROVIDER)
    if counted >= allowed_attempts(claim, policy):
        return _unattempted(claim, policy, Status.FAILED, Reason.RETRIES_EXHAUSTED)
    step_number = counted or attempts_made(claim)  # if all attempts were uncounted
    backoff_ms = delay_ms(policy, step_number, u, claim.last_delay_ms)
    floor_ms, _ = bounds_ms(policy, step_number, claim.last_delay_ms)
    spent = refused_only(claim.spent)
    step, wait_ms = _start_of_round(claim, route, spent, claim.holds, now, backoff_ms, backoff_ms - floor_ms)
    return replace(
        postpone(claim, policy, wait_ms, Reason.NO_PROVIDER),
        provider=step.provider,
        outlet=_outlet(claim, step),
        failures_here=0,
        spent=spent,
        moves=moves,
        free_move=False,
        last_delay_ms=backoff_ms,
    )


def is_push_retry(settlement: Settlement, claim: Claim) -> bool:
    """Returns True if the settlement schedules a retry of a push whose attempt has failed."""
    return claim.channel is _PUSH and settlement.status is _RETRYING and settlement.attempt is not None


def skip_retry(settlement: Settlement, claim: Claim, reason: Reason) -> Settlement:
    """Returns the settlement of a failed attempt that is not retried, because of its device or recipient."""
    return Settlement(
        id=settlement.id,
        token=settlement.token,
        worker=settlement.worker,
        started_at=settlement.started_at,
        status=Status.SKIPPED,
        provider=claim.provider,
        outlet=claim.outlet,
        max_age_ms=settlement.max_age_ms,
        reason=reason,
        attempt=settlement.attempt,
        bounce_always=settlement.bounce_always,
        bounce_min_ms=settlement.bounce_min_ms,
        bounce_max_ms=settlement.bounce_max_ms,
    )


def settle_timed_out(claim: Claim, policy: RetryPolicy) -> Settlement:
    """Returns the settlement of a synchronous send whose time ran out before anything was sent."""
    return _unattempted(claim, policy, Status.FAILED, Reason.DELIVERY_TIMEOUT)


def allowed_attempts(claim: Claim | Notification, policy: RetryPolicy) -> int:
    """Returns the maximum number of attempts: that of the notification, or else that of the policy.

    Moves at once do not count toward it. It is higher if an operator's retry or a receipt has granted another
    attempt.
    """
    most = policy.max_attempts if claim.max_attempts is None else claim.max_attempts
    if not claim.attempt_floor and not claim.bounce_floor:
        return most
    return max(most, claim.attempt_floor, min(claim.bounce_floor, most + 1))


def attempts_made(claim: Claim) -> int:
    """Returns the number of attempts made so far, without one that the claim has counted in advance."""
    return claim.attempt if claim.overdue else claim.attempt - 1


def waiting_status(attempts: int) -> Status:
    """Returns the status of a waiting notification after this many attempts."""
    return Status.RETRYING if attempts else Status.PENDING


def _settle_retry(
    claim: Claim,
    outcome: Outcome,
    policy: RetryPolicy,
    route: Route,
    record: AttemptRecord,
    elapsed_ms: int,
    u: float,
    stopped: Collection[str],
) -> Settlement:
    here, now = claim.provider, claim.started_at + elapsed_ms
    fails = outcome.kind not in _UNSURE or policy.on_timeout is OnTimeout.FAILOVER
    failures = claim.failures_here + fails
    broken = outcome.kind is OutcomeKind.PROVIDER_FAULT or (fails and here in stopped)
    spends = broken or (fails and failures >= policy.failover_after)
    without_here = {**claim.spent, here: Spent.REFUSED if outcome.unlisted else Spent.THIS_ROUND}
    spent, other = without_here, None
    if fails and not claim.pinned:
        other = next_step(route, spent=spent, stopped=stopped, holds=claim.holds, now=now)
    moves_are_free = broken or policy.failover_wait is FailoverWait.NONE
    at_once = spends and other is not None and moves_are_free
    counted = claim.attempt - claim.moves
    # Each round counts one attempt, unless all of them are uncounted. If this was the one, the next one is.
    uncounts = outcome.uncounted and not claim.free_move
    free_move = at_once and not uncounts
    if not at_once and not outcome.uncounted and counted >= allowed_attempts(claim, policy):
        return _settle_final(claim, policy, Status.FAILED, Reason.RETRIES_EXHAUSTED, record)

    retry_after_ms = min(outcome.retry_after_ms or 0, LONGEST_RETRY_AFTER_MS)
    # Attempts that do not count must still become rarer, or an outage would be met with the shortest delay.
    step_number = claim.attempt if uncounts else counted
    backoff_ms = delay_ms(policy, step_number, u, claim.last_delay_ms)
    shortest_ms, longest_ms = bounds_ms(policy, step_number, claim.last_delay_ms)
    jitter_ms = backoff_ms - shortest_ms
    step, wait_ms = RouteStep(here), backoff_ms
    if not spends:
        spent = dict(claim.spent)
        if retry_after_ms:
            wait_ms = max(backoff_ms, retry_after_ms + jitter_ms)
    elif other is not None:
        step, wait_ms, failures = other, 0 if at_once else backoff_ms, 0
    else:
        holds = {**claim.holds, here: now + retry_after_ms} if retry_after_ms else claim.holds
        spent, failures = refused_only(spent), 0
        step, wait_ms = _start_of_round(claim, route, spent, holds, now, backoff_ms, jitter_ms)

    if claim.expires_at is not None and now + wait_ms >= claim.expires_at:
        if other is None or at_once or now >= claim.expires_at:
            return _settle_final(claim, policy, Status.EXPIRED, Reason.EXPIRED, record)
        # Another provider may still send it in time.
        step, wait_ms, failures, spent, at_once = other, 0, 0, without_here, moves_are_free
        free_move = at_once and not uncounts

    return Settlement(
        id=claim.id,
        token=claim.token,
        worker=claim.worker,
        started_at=claim.started_at,
        status=Status.RETRYING,
        attempt=record,
        delay_ms=wait_ms,
        provider=step.provider,
        outlet=_outlet(claim, step),
        failures_here=failures,
        spent=spent,
        moves=claim.moves + free_move + uncounts,
        free_move=free_move,
        last_delay_ms=claim.last_delay_ms if at_once else backoff_ms,
        hold_ms=retry_after_ms,  # even if the delay covers it: a receipt may end this wait
        max_age_ms=policy.max_age_ms,
        bounce_always=policy.bounce_failover is _ALWAYS,
        # Earlier messages may still turn out to be taken, and fail then.
        bounce_min_ms=shortest_ms,
        bounce_max_ms=longest_ms,
    )


def _start_of_round(
    claim: Claim,
    route: Route,
    refused: Collection[str],
    holds: Mapping[str, int],
    now: int,
    backoff_ms: int,
    jitter_ms: int,
) -> tuple[RouteStep, int]:
    """Returns the provider with which the next round begins, and the wait before it.

    This is the first provider of the route after the backoff. If it is on hold for longer, it is the one that
    may be tried first. `jitter_ms` is added to a hold, so that not all notifications return at its end.
    """
    steps = [step for step in route if step.provider not in refused]
    if claim.pinned or not steps:
        steps = [RouteStep(claim.provider)]
    waits = [
        (
            max(backoff_ms, until - now + jitter_ms)
            if (until := holds.get(step.provider, 0)) > now
            else backoff_ms
        )
        for step in steps
    ]
    wait_ms = min(waits)
    return steps[waits.index(wait_ms)], wait_ms


def _outlet(claim: Claim, step: RouteStep) -> str:
    return claim.outlet if step.provider == claim.provider else step.outlet(claim.tenant, claim.address)


def _settle_final(
    claim: Claim,
    policy: RetryPolicy,
    status: Status,
    reason: Reason | None,
    record: AttemptRecord,
    *,
    puts: tuple[RegistryPut, ...] = (),
) -> Settlement:
    shortest_ms = longest_ms = None
    # A receipt may still report that this message or an earlier one has failed. A command may have reopened
    # the notification by then.
    if status is not _DELIVERED or claim.attempt > 1:
        shortest_ms, longest_ms = bounds_ms(policy, claim.attempt - claim.moves, claim.last_delay_ms)
    return Settlement(
        id=claim.id,
        token=claim.token,
        worker=claim.worker,
        started_at=claim.started_at,
        status=status,
        provider=claim.provider,
        outlet=claim.outlet,
        max_age_ms=policy.max_age_ms,
        reason=reason,
        attempt=record,
        bounce_always=policy.bounce_failover is _ALWAYS,
        bounce_min_ms=shortest_ms,
        bounce_max_ms=longest_ms,
        puts=puts,
    )


def _unattempted(
    claim: Claim, policy: RetryPolicy, status: Status, reason: Reason | None, *, delay_ms: int = 0
) -> Settlement:
    return Settlement(
        id=claim.id,
        token=claim.token,
        worker=claim.worker,
        started_at=claim.started_at,
        status=status,
        reason=reason,
        give_back=not claim.overdue,
        delay_ms=delay_ms,
        provider=claim.provider,
        outlet=claim.outlet,
        failures_here=claim.failures_here,
        free_move=claim.free_move,
        last_delay_ms=claim.last_delay_ms,
        max_age_ms=policy.max_age_ms,
    )


def _record(claim: Claim, outcome: Outcome, latency_ms: int) -> AttemptRecord:
    return AttemptRecord(
        number=claim.attempt,
        provider=claim.provider,
        outcome=outcome.kind,
        started_at=claim.started_at,
        latency_ms=latency_ms,
        worker=claim.worker,
        error_code=outcome.error_code,
        error=outcome.error,
        provider_message_id=outcome.provider_message_id,
    )
