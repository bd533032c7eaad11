"""Every outcome in every circumstance, compared with the specification's rules applied one by one."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from homing.core.lifecycle.outcomes import Outcome
from homing.core.notifications import Mode, OutcomeKind, Reason, Status
from homing.core.retry.decide import decide
from homing.core.retry.policy import FailoverWait, OnTimeout
from homing.core.routing.failover import Spent
from support.core_builders import DAY, MINUTE, NOW, ONE, SECOND, STEADY, TWO, make_claim

ELAPSED_MS = 3 * SECOND
BACKOFF_MS = 20 * SECOND
"""The policy's delay after attempt 2, or attempt 5 of which three were moves at once."""

PERMANENT = {
    OutcomeKind.BAD_CONTENT: Reason.BAD_CONTENT,
    OutcomeKind.BAD_RECIPIENT: Reason.BAD_RECIPIENT,
    OutcomeKind.DEAD_ADDRESS: Reason.DEAD_ADDRESS,
    OutcomeKind.OPTED_OUT: Reason.OPTED_OUT,
}
UNSURE = (OutcomeKind.AMBIGUOUS, OutcomeKind.LOST)

EXPIRIES = {
    "never": None,
    "in ten days": NOW + 10 * DAY,
    "in a minute": NOW + ELAPSED_MS + MINUTE,
    "just before the backoff ends": NOW + ELAPSED_MS + BACKOFF_MS - 1,
    "just as the backoff ends": NOW + ELAPSED_MS + BACKOFF_MS,
    "right now": NOW + ELAPSED_MS,
}
RETRY_AFTERS = (None, SECOND, 5 * MINUTE, 3 * DAY)


class Case(NamedTuple):
    on_timeout: OnTimeout
    pinned: bool
    providers: int
    last_attempt: bool
    failed_here_before: int
    failover_wait: FailoverWait
    other_spent: bool
    expiry: str
    retry_after_ms: int | None


class Verdict(NamedTuple):
    status: Status
    reason: Reason | None = None
    provider: str = "twilio"
    delay_ms: int = 0
    failures_here: int = 0
    moves: int = 0


CASES = [
    Case(*values)
    for values in itertools.product(
        OnTimeout,
        (False, True),
        (1, 2),
        (False, True),
        (0, 1),
        FailoverWait,
        (False, True),
        EXPIRIES,
        RETRY_AFTERS,
    )
]


def verdict(kind: OutcomeKind, case: Case, *, synchronous: bool) -> Verdict:
    if kind is OutcomeKind.ACCEPTED:
        return Verdict(Status.SENT)
    if kind in PERMANENT:
        return Verdict(Status.FAILED, PERMANENT[kind])
    if synchronous:
        reason = Reason.DELIVERY_TIMEOUT if kind in UNSURE else Reason.DELIVERY_FAILED
        return Verdict(Status.FAILED, reason)
    if kind in UNSURE and case.on_timeout is OnTimeout.HOLD:
        return Verdict(Status.IN_DOUBT, Reason.UNCONFIRMED)
    return again(kind, case)


def again(kind: OutcomeKind, case: Case) -> Verdict:
    asked_ms = min(case.retry_after_ms or 0, DAY)
    expires_at = EXPIRIES[case.expiry]
    left_ms = float("inf") if expires_at is None else expires_at - NOW - ELAPSED_MS
    fails = kind not in UNSURE or case.on_timeout is OnTimeout.FAILOVER
    may_leave = fails and case.providers == 2 and not case.pinned and not case.other_spent
    spends = fails and (kind is OutcomeKind.PROVIDER_FAULT or case.failed_here_before == 1)
    waits = case.failover_wait is FailoverWait.BACKOFF and kind is not OutcomeKind.PROVIDER_FAULT
    moved = Verdict(Status.RETRYING, provider="sns", moves=1)
    if spends and may_leave:
        settled = moved._replace(delay_ms=BACKOFF_MS, moves=0) if waits else moved
    elif spends and case.providers == 2 and not case.pinned and asked_ms > BACKOFF_MS:
        settled = Verdict(Status.RETRYING, provider="sns", delay_ms=BACKOFF_MS)  # a new round, twilio is held
    elif spends:
        settled = Verdict(Status.RETRYING, delay_ms=max(BACKOFF_MS, asked_ms))  # a new round
    else:
        stays = Verdict(Status.RETRYING, failures_here=case.failed_here_before + fails)
        settled = stays._replace(delay_ms=max(BACKOFF_MS, asked_ms))
    if case.last_attempt and not settled.moves:
        return Verdict(Status.FAILED, Reason.RETRIES_EXHAUSTED)
    if settled.delay_ms < left_ms:
        return settled
    if may_leave and left_ms > 0 and not settled.moves:
        return moved._replace(moves=0) if waits else moved
    return Verdict(Status.EXPIRED, Reason.EXPIRED)


@pytest.mark.parametrize("synchronous", [False, True], ids=["queued", "synchronous"])
@pytest.mark.parametrize("kind", list(OutcomeKind))
def test_the_settlement_follows_the_rules(kind: OutcomeKind, synchronous: bool) -> None:
    for case in CASES:
        claim = make_claim(
            attempt=8 if case.last_attempt else 5,
            moves=3,
            spent={"sns": Spent.THIS_ROUND} if case.other_spent else {},
            mode=Mode.SYNCHRONOUS if synchronous else Mode.STANDARD,
            pinned=case.pinned,
            failures_here=case.failed_here_before,
            expires_at=EXPIRIES[case.expiry],
        )
        settled = decide(
            claim,
            Outcome(kind, retry_after_ms=case.retry_after_ms),
            replace(STEADY, on_timeout=case.on_timeout, failover_after=2, failover_wait=case.failover_wait),
            ONE if case.providers == 1 else TWO,
            elapsed_ms=ELAPSED_MS,
            latency_ms=900,
            u=0.5,
        )
        found = Verdict(
            settled.status,
            settled.reason,
            settled.provider,
            settled.delay_ms,
            settled.failures_here,
            0 if settled.spent is None else settled.moves - 3,
        )
        expected = verdict(kind, case, synchronous=synchronous)
        assert found == expected, case
        asked_ms = min(case.retry_after_ms or 0, DAY)
        assert settled.hold_ms == (asked_ms if settled.status is Status.RETRYING else 0), case
        assert settled.free_move == (expected.moves == 1), case
        assert (settled.id, settled.token, settled.give_back) == ("n-1", 1, False)
        assert settled.outlet == settled.provider


def test_the_table_covers_every_kind_of_ending() -> None:
    found = [
        verdict(kind, case, synchronous=synchronous)
        for kind, case, synchronous in itertools.product(OutcomeKind, CASES, (False, True))
    ]
    seen = {(one.status, one.reason, one.provider) for one in found}
    assert {status for status, _, _ in seen} == {
        Status.SENT,
        Status.FAILED,
        Status.IN_DOUBT,
        Status.EXPIRED,
        Status.RETRYING,
    }
    assert len(seen) == 12
