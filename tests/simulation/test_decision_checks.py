"""The checks of settlements accept what the specification allows, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from simulation.checkers.decisions import PolicyChecker
from simulation.checkers.shared_state import BreakerChecker, DirectoryChecker
from simulation.plan import LACKING_PROCESS, build_faultless_plan
from simulation.shadow_state import ProviderCall, ShadowState, SimulationState, Violation
from simulation.trace import Trace

from homing.core.lifecycle.claims import Claim
from homing.core.lifecycle.outcomes import Outcome
from homing.core.notifications import Channel, OutcomeKind, Reason, Status
from homing.core.ports.stores import Entry
from homing.core.retry.decide import decide
from homing.core.retry.policy import Backoff, FailoverWait, Jitter, OnTimeout, PolicyPatch, Rule
from homing.core.routing.breaker import Breaker, Phase
from homing.core.routing.failover import Spent
from homing.rehearsal.virtual_time import VirtualClock, VirtualLoop, run_virtual
from support.core_builders import SECOND, TWO, make_claim, make_outcome, make_row
from support.simulation_builders import shadow_of

PATCH = PolicyPatch(
    max_attempts=1, on_timeout=OnTimeout.FAILOVER, failover_wait=FailoverWait.BACKOFF, failover_after=1
)
"""One attempt. A lost one counts as a failure, and moves to another provider wait for the backoff."""

Stopped = Callable[[str, str, ShadowState], bool]


def new_checker(
    loop: VirtualLoop, patch: PolicyPatch, stopped: Stopped, **changes: Any
) -> tuple[SimulationState, PolicyChecker]:
    """Returns a checker for a plan with one rule and these fields changed."""
    plan = replace(build_faultless_plan(1, 1), rules=(Rule(name="the rule", policy=patch),), **changes)
    state = SimulationState(plan, VirtualClock(loop), Trace(None))
    routes = {Channel.SMS: tuple(step.provider for step in TWO)}
    return state, PolicyChecker(state, routes, stopped, DirectoryChecker(state))


def ended_call(claim: Claim, outcome: Outcome) -> ProviderCall:
    """Returns the first call of a notification, which has ended."""
    return ProviderCall(
        provider="twilio",
        process="p1",
        id=claim.id,
        attempt=1,
        began_ms=0,
        due_ms=SECOND,
        jumps=0,
        over=True,
        outcome=outcome,
        kind=outcome.kind,
    )


@pytest.mark.parametrize("pinned", [False, True], ids=["free", "pinned"])
@pytest.mark.parametrize("is_open", [True, False], ids=["open", "closed"])
def test_a_lost_last_attempt_may_expire_only_if_it_would_move_at_once(is_open: bool, pinned: bool) -> None:
    """A move away from an open breaker is at once and free, so only the expiry prevents it.

    An operator had opened the breaker, which the check did not consider (seed 1600021006).
    """

    async def main(loop: VirtualLoop) -> None:
        state, checker = new_checker(
            loop, PATCH, lambda process, provider, about: is_open and provider == "twilio"
        )
        claim = make_claim(started_at=state.now, expires_at=state.now + SECOND, pinned=pinned)
        shadow = shadow_of(claim, reclaimed=True)
        policy = next(checker.in_force("p1", shadow, 0))
        assert (policy.max_attempts, policy.failover_wait) == (1, FailoverWait.BACKOFF)
        await asyncio.sleep(2)
        settled = decide(
            claim,
            make_outcome(OutcomeKind.LOST),
            policy,
            TWO,
            elapsed_ms=2 * SECOND,
            latency_ms=0,
            u=0.0,
            stopped={"twilio"} if is_open else (),
        )
        moves_at_once = is_open and not pinned
        assert settled.status is (Status.EXPIRED if moves_at_once else Status.FAILED)
        checker.decided("p1", shadow, settled, make_row(status=settled.status))
        if not moves_at_once:
            wrong = replace(settled, status=Status.EXPIRED, reason=Reason.EXPIRED)
            with pytest.raises(Violation, match="attempt 1 was the last, but it is expired"):
                checker.decided("p1", shadow, wrong, make_row(status=Status.EXPIRED))

    run_virtual(main)


@pytest.mark.parametrize("may_be_open", [True, False], ids=["may-be-open", "closed"])
@pytest.mark.parametrize("wait", FailoverWait)
@pytest.mark.parametrize("kind", [OutcomeKind.TRANSIENT, OutcomeKind.PROVIDER_FAULT])
def test_an_uncounted_failure_moves_at_once_or_after_the_backoff(
    kind: OutcomeKind, wait: FailoverWait, may_be_open: bool
) -> None:
    """If the breaker may have been open, both are right (seeds 18003 and 1600100002)."""
    must_be_at_once = kind is OutcomeKind.PROVIDER_FAULT or wait is FailoverWait.NONE
    may_be_at_once = must_be_at_once or may_be_open

    async def main(loop: VirtualLoop) -> None:
        patch = PolicyPatch(failover_wait=wait, failover_after=1)
        state, checker = new_checker(
            loop, patch, lambda process, provider, about: may_be_open and provider == "twilio"
        )
        claim, outcome = make_claim(started_at=state.now), make_outcome(kind, uncounted=True)
        call = ended_call(claim, outcome)
        for at_once in (True, False):
            shadow = shadow_of(claim, calls={1: call})
            policy = next(checker.in_force("p1", shadow, 0))
            settled = decide(
                claim,
                outcome,
                replace(policy, failover_wait=FailoverWait.NONE if at_once else FailoverWait.BACKOFF),
                TWO,
                elapsed_ms=0,
                latency_ms=0,
                u=0.5,
            )
            assert (settled.provider, settled.moves, settled.free_move) == ("sns", 1, False)
            if kind is OutcomeKind.PROVIDER_FAULT and not at_once:  # never decided
                settled = replace(settled, delay_ms=settled.bounce_max_ms or 0)
            assert (settled.delay_ms == 0) is at_once
            row = make_row(status=settled.status)
            if may_be_at_once if at_once else not must_be_at_once:
                checker.decided("p1", shadow, settled, row)
            else:
                problem = (
                    "the next provider is due in 0 ms" if at_once else "the move to sns is not made at once"
                )
                with pytest.raises(Violation, match=problem):
                    checker.decided("p1", shadow, settled, row)

    run_virtual(main)


@pytest.mark.parametrize("known", [True, False], ids=["known", "too-late"])
def test_an_answer_at_the_deadline_is_either_recorded_or_counts_as_none(known: bool) -> None:
    """A process that continues after a suspension may get the answer or give up (seed 2200000052)."""

    async def main(loop: VirtualLoop) -> None:
        patch = replace(PATCH, failover_wait=FailoverWait.NONE)
        state, checker = new_checker(loop, patch, lambda process, provider, about: False)
        claim = make_claim(started_at=state.now)
        answer = replace(make_outcome(OutcomeKind.AMBIGUOUS), error_code="away", uncounted=True)
        call = replace(ended_call(claim, answer), over_ms=9 * SECOND)
        shadow = shadow_of(claim, calls={1: call})
        policy = next(checker.in_force("p1", shadow, 0))
        used = answer if known else replace(make_outcome(OutcomeKind.AMBIGUOUS), error_code="timeout")
        settled = decide(claim, used, policy, TWO, elapsed_ms=0, latency_ms=0, u=0.5)
        assert (settled.moves, settled.free_move) == (1, not known)
        checker.decided("p1", shadow, settled, make_row(status=settled.status, due_at=state.now))
        wrong = replace(settled, free_move=known)
        with pytest.raises(Violation):
            checker.decided("p1", shadow, wrong, make_row(status=settled.status, due_at=state.now))

    run_virtual(main)


@pytest.mark.parametrize("forced", [None, Phase.CLOSED, Phase.OPEN])
@pytest.mark.parametrize("phase", Phase)
def test_a_provider_may_be_avoided_if_its_breaker_is_open_and_not_forced_closed(
    phase: Phase, forced: Phase | None
) -> None:
    """An operator's choice wins over the automatic one (seed 18003)."""

    async def main(loop: VirtualLoop) -> None:
        state = SimulationState(build_faultless_plan(1, 1), VirtualClock(loop), Trace(None))
        checker = BreakerChecker(state)
        provider = state.plan.providers[0].id
        checker.read("p1", {provider: Breaker(phase=phase, forced=forced, version=1)}, 0)
        await asyncio.sleep(1)
        shadow = shadow_of(make_claim(), leased_ms=state.ms)
        is_open = phase is not Phase.CLOSED if forced is None else forced is Phase.OPEN
        assert checker.may_avoid("p1", provider, shadow) is is_open

    run_virtual(main)


@pytest.mark.parametrize("overtaken", [True, False], ids=["overtaken", "in-order"])
def test_rules_are_in_force_unless_a_read_that_began_later_has_finished_before(overtaken: bool) -> None:
    """The overtaken read may be older, so a process ignores it (seed 1600100142)."""

    async def main(loop: VirtualLoop) -> None:
        _, checker = new_checker(loop, PATCH, lambda process, provider, about: False)
        rule = msgspec.to_builtins(Rule(name="the rule", policy=PolicyPatch(max_attempts=7)))
        changed = (Entry(tenant="*", kind="policy", key="the rule", value={"rule": rule}, version=1),)
        first, second = checker.begin_read("p1"), checker.begin_read("p1")
        checker.read("p1", second if overtaken else first, ())
        await asyncio.sleep(1)
        checker.read("p1", first if overtaken else second, changed)
        policies = checker.in_force("p1", shadow_of(make_claim()), 10**6)
        assert next(policies).max_attempts == (1 if overtaken else 7)

    run_virtual(main)


@pytest.mark.parametrize(("uncounted", "shortest_ms"), [(True, 500), (False, 2_000)])
def test_after_an_uncounted_failure_the_wait_may_be_that_of_any_later_attempt_of_the_round(
    uncounted: bool, shortest_ms: int
) -> None:
    """If nothing counts, the backoff is that of the attempt which ends the round (seed 1600300032).

    Its list of waits has a shorter one for the second attempt.
    """

    async def main(loop: VirtualLoop) -> None:
        patch = PolicyPatch(
            backoff=Backoff.FIXED, steps_ms=(2_000, 500, 8_000), jitter=Jitter.NONE, failover_after=1
        )
        state, checker = new_checker(loop, patch, lambda process, provider, about: False)
        kind = OutcomeKind.TRANSIENT
        claim, outcome = make_claim(started_at=state.now), make_outcome(kind, uncounted=uncounted)
        shadow = shadow_of(claim, calls={1: ended_call(claim, outcome)})
        policy = next(checker.in_force("p1", shadow, 0))
        settled = decide(claim, outcome, policy, TWO, elapsed_ms=0, latency_ms=0, u=0.5)
        assert (settled.provider, settled.delay_ms) == ("sns", 0)
        checker.decided("p1", shadow, settled, make_row(status=settled.status))
        assert shadow.left_alone["twilio"].backoff_ms == state.ms + shortest_ms

    run_virtual(main)


@pytest.mark.parametrize("spools", [True, False])
@pytest.mark.parametrize("provider", [step.provider for step in TWO])
def test_a_notification_starts_at_the_first_provider_of_the_process_that_chose_it(
    provider: str, spools: bool
) -> None:
    """A process may empty the spool of one that has other providers (seeds 1600200152 and 1600200172)."""

    async def main(loop: VirtualLoop) -> None:
        _, checker = new_checker(
            loop,
            PATCH,
            lambda process, provider, about: False,
            spools=spools,
            lacking=frozenset({TWO[0].provider}),
        )
        shadow, row = shadow_of(make_claim()), make_row(provider=provider)
        if spools or provider == TWO[1].provider:
            checker.accepted(LACKING_PROCESS, shadow, row)
        else:
            with pytest.raises(Violation, match=f"starts at {provider}, which is not the first"):
                checker.accepted(LACKING_PROCESS, shadow, row)

    run_virtual(main)


@pytest.mark.parametrize("spent", [Spent.REFUSED, Spent.THIS_ROUND, None])
@pytest.mark.parametrize("rolled_back", [True, False])
def test_after_lost_commits_an_unlisted_error_is_attributed_by_what_the_row_says(
    rolled_back: bool, spent: Spent | None
) -> None:
    """Refusals that were settled after the loss are only in the row (seed 1600310136).

    Without a loss, the row is not trusted: it must say what the checker has seen.
    """

    async def main(loop: VirtualLoop) -> None:
        _, checker = new_checker(loop, PATCH, lambda process, provider, about: False)
        claim, outcome = make_claim(), make_outcome(OutcomeKind.BAD_CONTENT, unlisted=True)
        call = ended_call(claim, outcome)
        kept = {} if spent is None else {TWO[1].provider: int(spent)}
        shadow = shadow_of(claim, rolled_back=rolled_back, spent=kept)
        is_refused = rolled_back and spent is Spent.REFUSED
        expected = OutcomeKind.BAD_CONTENT if is_refused else OutcomeKind.PROVIDER_FAULT
        assert checker.kind_of(call, shadow) is expected
        shadow.refused_by.add(TWO[1].provider)
        if not rolled_back:
            assert checker.kind_of(call, shadow) is OutcomeKind.BAD_CONTENT

    run_virtual(main)
