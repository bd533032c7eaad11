"""The breaker on random walks, compared with a model that is written from the specification."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from homing.core.notifications import OutcomeKind
from homing.core.routing.breaker import (
    Breaker,
    BreakerGate,
    BreakerPolicy,
    Phase,
    begin_trial,
    blames_provider,
    check_gate,
    force_phase,
    ramp_per_second,
    record_health_check,
    record_outcome,
    reopens_at,
)
from support.core_builders import NOW

POLICY = BreakerPolicy(failures=3, open_ms=1_000, ramp_ms=800)
TRIAL_MS = 300

BAD = [OutcomeKind.TRANSIENT, OutcomeKind.PROVIDER_FAULT, OutcomeKind.AMBIGUOUS]
SILENT = [OutcomeKind.THROTTLED, OutcomeKind.LOST]


class Walk(RuleBasedStateMachine):
    """Remembers events instead of states, and derives the expected state from them."""

    @initialize()
    def begin(self) -> None:
        self.now = NOW
        self.breaker = Breaker()
        self.bad_in_a_row = 0
        self.shut_until: int | None = None
        self.trial_until: int | None = None
        self.recovered_at: int | None = None
        self.ordered: Phase | None = None

    def verdict(self) -> BreakerGate:
        if self.ordered is not None:
            return BreakerGate.STOP if self.ordered is Phase.OPEN else BreakerGate.GO
        if self.shut_until is None:
            return BreakerGate.GO
        quiet_until = self.shut_until if self.trial_until is None else self.trial_until
        return BreakerGate.STOP if self.now < quiet_until else BreakerGate.TRIAL

    def shut(self) -> None:
        self.shut_until, self.trial_until, self.recovered_at = self.now + POLICY.open_ms, None, None

    @rule(ms=st.integers(1, 700))
    def time_passes(self, ms: int) -> None:
        self.now += ms

    @rule(kind=st.sampled_from(list(OutcomeKind)))
    def an_attempt_ends(self, kind: OutcomeKind) -> None:
        """While half open this is the trial's attempt; while open it is an earlier attempt.

        A breaker that an operator has forced does not change.
        """
        self.breaker = record_outcome(self.breaker, POLICY, blames_provider(kind), self.now)
        if kind in SILENT or self.ordered is not None:
            return
        if kind in BAD:
            self.bad_in_a_row += 1
            if self.trial_until is not None or (self.shut_until is None and self.bad_in_a_row >= 3):
                self.shut()
            return
        self.bad_in_a_row = 0
        if self.trial_until is not None:
            self.shut_until = self.trial_until = None
            self.recovered_at = self.now

    @precondition(lambda self: self.verdict() is BreakerGate.TRIAL)
    @rule(worker=st.sampled_from(["one", "two"]))
    def a_worker_begins_the_trial(self, worker: str) -> None:
        self.breaker = begin_trial(self.breaker, worker, self.now, TRIAL_MS)
        self.trial_until = self.now + TRIAL_MS
        assert self.breaker.trial_by == worker

    @rule()
    def a_health_check_is_good(self) -> None:
        self.breaker = record_health_check(self.breaker, self.now)
        if self.shut_until is not None and self.trial_until is None:
            self.shut_until = min(self.shut_until, self.now)

    @rule(phase=st.sampled_from([Phase.OPEN, Phase.CLOSED]))
    def an_operator_chooses(self, phase: Phase) -> None:
        self.breaker = force_phase(self.breaker, phase, "ada", self.now)
        self.ordered = phase

    @rule()
    def an_operator_gives_it_back(self) -> None:
        self.breaker = force_phase(self.breaker, None, "ada", self.now)
        self.ordered = self.shut_until = self.trial_until = None
        self.bad_in_a_row, self.recovered_at = 0, self.now

    @invariant()
    def the_gate_says_what_the_model_says(self) -> None:
        assert check_gate(self.breaker, self.now) is self.verdict()

    @invariant()
    def a_stopped_breaker_knows_when_it_lets_a_trial_through(self) -> None:
        if check_gate(self.breaker, self.now) is not BreakerGate.STOP:
            return
        at = reopens_at(self.breaker)
        if self.ordered is not None:
            assert at is None
            return
        assert at is not None
        assert check_gate(self.breaker, at - 1) is BreakerGate.STOP
        assert check_gate(self.breaker, at) is BreakerGate.TRIAL

    @invariant()
    def the_ramp_runs_from_the_recovery_and_only_then(self) -> None:
        ramping = self.recovered_at is not None and self.now < self.recovered_at + POLICY.ramp_ms
        assert (ramp_per_second(self.breaker, POLICY, self.now) is not None) == ramping


TestTheBreakerAgreesWithItsModel = Walk.TestCase
TestTheBreakerAgreesWithItsModel.settings = settings(max_examples=100, stateful_step_count=40)
