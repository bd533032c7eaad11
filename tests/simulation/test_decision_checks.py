"""The checks of settlements accept what the specification allows, and nothing else."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace
from simulation.checkers.decisions import PolicyChecker
from simulation.checkers.shared_state import DirectoryChecker
from simulation.plan import build_faultless_plan
from simulation.shadow_state import ShadowState, SimulationState, Violation
from simulation.trace import Trace

from homing.core.notifications import Channel, OutcomeKind, Reason, Status
from homing.core.retry.decide import decide
from homing.core.retry.policy import FailoverWait, OnTimeout, PolicyPatch, Rule
from homing.rehearsal.virtual_time import VirtualClock, VirtualLoop, run_virtual
from support.core_builders import SECOND, TWO, make_claim, make_outcome, make_row

PATCH = PolicyPatch(
    max_attempts=1, on_timeout=OnTimeout.FAILOVER, failover_wait=FailoverWait.BACKOFF, failover_after=1
)
"""One attempt. A lost one counts as a failure, and moves to another provider wait for the backoff."""


@pytest.mark.parametrize("pinned", [False, True], ids=["free", "pinned"])
@pytest.mark.parametrize("is_open", [True, False], ids=["open", "closed"])
def test_a_lost_last_attempt_may_expire_only_if_it_would_move_at_once(is_open: bool, pinned: bool) -> None:
    """A move away from an open breaker is at once and free, so only the expiry prevents it.

    An operator had opened the breaker, which the check did not consider (seed 1600021006).
    """

    async def main(loop: VirtualLoop) -> None:
        plan = replace(build_faultless_plan(1, 1), rules=(Rule(name="one attempt", policy=PATCH),))
        state = SimulationState(plan, VirtualClock(loop), Trace(None))
        claim = make_claim(started_at=state.now, expires_at=state.now + SECOND, pinned=pinned)
        shadow = ShadowState(
            id=claim.id,
            tenant=claim.tenant,
            batch_id=claim.batch_id,
            mode=claim.mode,
            channel=claim.channel,
            type=claim.type,
            category=claim.category,
            origin=claim.origin,
            priority=claim.priority,
            address=claim.address,
            recipient_id=None,
            digest=b"",
            status=Status.SENDING,
            pinned=claim.pinned,
            provider=claim.provider,
            expires_at=claim.expires_at,
            aged_from=claim.aged_from,
            max_age_ms=10**9,
            attempts=1,
            reclaimed=True,
        )
        checker = PolicyChecker(
            state,
            {Channel.SMS: tuple(step.provider for step in TWO)},
            lambda process, provider, about: is_open and provider == "twilio",
            DirectoryChecker(state),
        )
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
