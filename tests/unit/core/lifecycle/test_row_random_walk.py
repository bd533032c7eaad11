"""A row through all possible events in any legal order, with its invariants checked after each step."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from homing.core.lifecycle.claims import Lease
from homing.core.lifecycle.commands import CommandName
from homing.core.lifecycle.events import EVENT_NAMES
from homing.core.lifecycle.outcomes import AttemptRecord, Settlement
from homing.core.lifecycle.receipt_decision import apply_receipt, decide_receipt, receipt_context
from homing.core.lifecycle.receipts import ReceiptEvent
from homing.core.lifecycle.row_commands import apply_command
from homing.core.lifecycle.row_events import events_of, roll_up_counts
from homing.core.lifecycle.rows import Change, Row, claim_of, extend, lease, reclaim, settle
from homing.core.lifecycle.states import WAITING, after_command, may_settle
from homing.core.notifications import Mode, OutcomeKind, Reason, Status
from homing.core.retry.decide import RecipientFacts, check_before_attempt, decide, postpone
from homing.core.retry.policy import OnTimeout, RetryPolicy
from support.core_builders import (
    DAY,
    HOUR,
    MESSAGE,
    MINUTE,
    NOW,
    SECOND,
    TWO,
    accept,
    make_command,
    make_new,
    make_outcome,
    make_receipt,
)

LEASE_MS = 40 * SECOND

policies = st.builds(
    RetryPolicy,
    max_attempts=st.integers(1, 4),
    base_ms=st.just(10 * SECOND),
    failover_after=st.integers(1, 2),
    on_timeout=st.sampled_from(list(OnTimeout)),
    max_age_ms=st.sampled_from([HOUR, DAY]),
)


class Life(RuleBasedStateMachine):
    row: Row

    @initialize(
        synchronous=st.booleans(),
        send_in_ms=st.sampled_from([None, HOUR]),
        expires_in_ms=st.sampled_from([None, 2 * HOUR]),
        policy=policies,
    )
    def accepted(
        self, synchronous: bool, send_in_ms: int | None, expires_in_ms: int | None, policy: RetryPolicy
    ) -> None:
        self.now = NOW
        self.policy = policy
        self.attempts: list[AttemptRecord] = []
        self.ranks: dict[str, int] = {}
        self.event_ids: set[str] = set()
        self.granted = 0
        new = make_new(
            mode=Mode.SYNCHRONOUS if synchronous else Mode.STANDARD,
            send_at=NOW + send_in_ms if send_in_ms and not synchronous else None,
            expires_at=NOW + expires_in_ms if expires_in_ms else None,
            max_age_ms=policy.max_age_ms,
        )
        change = accept(new, lease_to="api-1" if synchronous else None)
        self.row = change.row
        self.seen: tuple[Status | None, int, int, int] = (None, 0, 0, 0)
        self.note(change)

    def note(self, change: Change) -> None:
        """Checks that a change is the next one, legal, reported correctly, and has a cause."""
        before, attempts, token, number = self.seen
        assert (change.before, change.attempts_before) == (before, attempts)
        assert self.row.changes > number
        assert self.row.token >= token
        assert self.row.updated_at == change.at == self.now
        if change.attempt is not None:
            self.attempts.append(change.attempt)
        self.check_cause(change)
        made = events_of(change, EVENT_NAMES, MESSAGE, self.attempts)
        assert not self.event_ids & {event.id for event in made}
        self.event_ids |= {event.id for event in made}
        assert all(count == 1 for count in roll_up_counts(change).values())
        self.seen = (self.row.status, self.row.attempts, self.row.token, self.row.changes)

    def check_cause(self, change: Change) -> None:
        before, after = change.before, self.row.status
        if before is None or after is Status.SENDING or before is after:
            return
        if before is Status.SENDING:
            assert may_settle(before, after)
            assert change.attempt or change.cause or after in WAITING
            return
        assert change.cause is not None
        assert (change.cause.before, change.cause.after) == (before, after)

    # Possible events -----------------------------------------------------------------------------

    @rule(ms=st.sampled_from([SECOND, MINUTE, HOUR, DAY]))
    def time_passes(self, ms: int) -> None:
        self.now += ms

    @rule(policy=policies)
    def the_policy_changes(self, policy: RetryPolicy) -> None:
        self.policy = policy

    @precondition(lambda self: self.row.due_at is not None and self.row.due_at <= self.now)
    @rule()
    def it_is_claimed(self) -> None:
        self.note(lease(self.row, "worker-1", LEASE_MS, self.now))

    @precondition(lambda self: self.row.deadline_at is not None and self.row.deadline_at <= self.now)
    @rule()
    def its_deadline_passes(self) -> None:
        self.note(reclaim(self.row, "worker-2", LEASE_MS, self.now))
        assert self.row.overdue

    @precondition(lambda self: self.row.lease_until is not None and self.row.lease_until <= self.now)
    @rule()
    def its_worker_is_lost(self) -> None:
        self.note(reclaim(self.row, "worker-3", LEASE_MS, self.now))

    @precondition(lambda self: self.row.status is Status.SENDING and not self.row.overdue)
    @rule(provider=st.sampled_from(["twilio", "sns"]))
    def a_breaker_moves_it_on(self, provider: str) -> None:
        assert extend(self.row, Lease(self.row.id, self.row.token, provider, provider), LEASE_MS, self.now)
        assert self.row.provider == provider

    @precondition(lambda self: self.row.status is Status.SENDING and not self.row.overdue)
    @rule(
        kind=st.sampled_from(list(OutcomeKind)),
        retry_after_ms=st.sampled_from([None, HOUR, 3 * DAY]),
        delivered=st.booleans(),
    )
    def its_attempt_ends(self, kind: OutcomeKind, retry_after_ms: int | None, delivered: bool) -> None:
        outcome = make_outcome(
            kind,
            retry_after_ms=retry_after_ms,
            delivered=delivered,
            provider_message_id=f"m-{self.row.attempts}",
        )
        claim = claim_of(self.row, MESSAGE, self.now)
        elapsed_ms = self.now - claim.started_at
        settlement = decide(
            claim, outcome, self.policy, TWO, elapsed_ms=elapsed_ms, latency_ms=elapsed_ms, u=0.5
        )
        self.settles(settlement)

    @precondition(lambda self: self.row.status is Status.SENDING)
    @rule(
        facts=st.sampled_from(
            [RecipientFacts(), RecipientFacts(skip=Reason.SUPPRESSED), RecipientFacts(postpone_ms=MINUTE)]
        )
    )
    def the_guard_judges_it(self, facts: RecipientFacts) -> None:
        claim = claim_of(self.row, MESSAGE, self.now)
        settlement = check_before_attempt(claim, self.policy, facts, now=self.now)
        if settlement is not None:
            self.settles(settlement)

    def settles(self, settlement: Settlement) -> None:
        change = settle(self.row, settlement, self.now)
        assert change is not None
        self.note(change)
        assert settle(self.row, settlement, self.now) is None, "a settlement counts once"

    @precondition(lambda self: self.row.token > 1)
    @rule()
    def a_settlement_comes_too_late(self) -> None:
        if self.row.status is not Status.SENDING:
            return
        stale = postpone(claim_of(self.row, MESSAGE, self.now), self.policy, 0, None)
        stale = Settlement(
            id=stale.id,
            token=self.row.token - 1,
            worker=stale.worker,
            started_at=stale.started_at,
            status=Status.SENT,
            provider="sns",
            outlet="sns",
            max_age_ms=DAY,
        )
        assert settle(self.row, stale, self.now) is None
        assert (self.row.status, self.row.attempts, self.row.token, self.row.changes) == self.seen

    @rule(
        name=st.sampled_from(list(CommandName)),
        provider=st.sampled_from([None, "sns"]),
        resolution=st.sampled_from([Status.SENT, Status.FAILED]),
        delay_ms=st.sampled_from([MINUTE, DAY]),
    )
    def an_operator_commands(
        self, name: CommandName, provider: str | None, resolution: Status, delay_ms: int
    ) -> None:
        order = make_command(
            name, provider=provider, resolution=resolution, delay_ms=delay_ms, new_ids={"n-1": "n-2"}
        )
        resent = self.row.resent_as is not None
        allowed = after_command(order, self.row.status, mode=self.row.mode, resent=resent) is not None
        reopens = name is CommandName.RETRY and self.row.status not in WAITING
        change = apply_command(self.row, order, self.now)
        assert (change is not None) == allowed
        if change is not None:
            self.granted += reopens
            self.note(change)

    @precondition(lambda self: self.row.status is not Status.SENDING and self.attempts)
    @rule(
        event=st.sampled_from(list(ReceiptEvent)),
        outcome=st.sampled_from([None, *OutcomeKind]),
        back=st.integers(0, 2),
    )
    def a_receipt_comes_in(self, event: ReceiptEvent, outcome: OutcomeKind | None, back: int) -> None:
        index = max(0, len(self.attempts) - 1 - back)
        about = self.attempts[index]
        message_id = about.provider_message_id
        assert message_id is not None
        receipt = make_receipt(
            event, provider=about.provider, provider_message_id=message_id, outcome=outcome
        )
        ranks = [self.ranks.get(one.provider_message_id or "", 0) for one in self.attempts]
        standing = receipt_context(self.row, self.attempts, ranks, index, self.now)
        verdict = decide_receipt(standing, receipt)
        if verdict is not None:
            assert verdict.rank >= standing.rank
            self.ranks[message_id] = verdict.rank
            self.granted += verdict.reopened
            self.note(apply_receipt(self.row, verdict, receipt, self.now))

    # Invariants ----------------------------------------------------------------------------------

    @invariant()
    def it_is_due_exactly_while_it_waits(self) -> None:
        waits = self.row.status in WAITING
        assert (self.row.due_at is not None) == waits
        assert (self.row.deadline_at is not None) == waits

    @invariant()
    def it_is_leased_exactly_while_it_is_being_sent(self) -> None:
        sending = self.row.status is Status.SENDING
        assert (self.row.lease_until is not None) == sending
        assert bool(self.row.worker) == sending
        assert sending or not self.row.overdue
        # It is kept while receipts about the sent messages may still decide.
        kept = self.row.status in (Status.SENT, Status.CANCELLED)
        assert sending or kept or not self.row.cancel_requested

    @invariant()
    def every_attempt_is_on_record_or_under_way(self) -> None:
        in_flight = self.row.status is Status.SENDING and not self.row.overdue
        assert self.row.attempts == len(self.attempts) + in_flight
        assert [attempt.number for attempt in self.attempts] == list(range(1, len(self.attempts) + 1))

    @invariant()
    def no_more_attempts_are_made_than_policies_and_grants_allow(self) -> None:
        assert len(self.attempts) <= 4 + self.granted

    @invariant()
    def it_is_pending_only_before_its_first_attempt_and_retrying_only_after(self) -> None:
        if self.row.status in WAITING:
            assert (self.row.status is Status.RETRYING) == (self.row.attempts > 0)

    @invariant()
    def a_synchronous_one_never_waits(self) -> None:
        assert self.row.mode is not Mode.SYNCHRONOUS or self.row.status not in WAITING

    @invariant()
    def its_times_fit_its_status(self) -> None:
        if self.row.status in (Status.SENT, Status.DELIVERED):
            assert self.row.sent_at is not None
            assert self.row.failed_at is None
        if self.row.status is Status.DELIVERED:
            assert self.row.delivered_at is not None
        if self.row.status is Status.FAILED:
            assert self.row.failed_at is not None


TestARowKeepsItsInvariantsThroughAnyLife = Life.TestCase
TestARowKeepsItsInvariantsThroughAnyLife.settings = settings(max_examples=120, stateful_step_count=40)
