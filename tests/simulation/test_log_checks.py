"""The check of log lines accepts a loss that a long suspension explains, and nothing else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest
from simulation.checkers.clock import ClockChecker
from simulation.checkers.counts import CountChecker
from simulation.checkers.rows import RowChecker
from simulation.checkers.shared_state import LogChecker
from simulation.plan import build_faultless_plan
from simulation.shadow_state import SimulationState, Violation
from simulation.trace import Trace

from homing.core.lifecycle.claims import Claim
from homing.core.lifecycle.outcomes import Settlement, SettleResult
from homing.core.notifications import Status
from homing.engine.delivery.settler import Settler
from homing.rehearsal.virtual_time import VirtualClock, VirtualLoop, run_virtual
from support.core_builders import make_claim
from support.simulation_builders import shadow_of


class PurgedStore:
    """A store that no longer has the notifications whose results are written."""

    def __init__(self, rows: RowChecker) -> None:
        self._rows = rows

    async def settle(self, batch: Sequence[Settlement]) -> SettleResult:
        result = SettleResult(missing=tuple(settlement.id for settlement in batch))
        self._rows.settled_batch(batch, result)
        return result


def row_checker(state: SimulationState) -> RowChecker:
    def ignored(*args: Any) -> None:
        """Ignores a change that is not checked here."""

    return RowChecker(
        state,
        CountChecker(state),
        skip_reason=lambda shadow: "",
        decided=ignored,
        accepted=ignored,
        bounced=ignored,
        clock=ClockChecker(state),
        lease_expired=ignored,
    )


def settlement_of(claim: Claim) -> Settlement:
    return Settlement(
        id=claim.id,
        token=claim.token,
        worker=claim.worker,
        started_at=claim.started_at,
        status=Status.SENT,
        provider=claim.provider,
        outlet=claim.outlet,
        max_age_ms=1_000,
    )


@pytest.mark.parametrize("suspended_after_s", [None, 0, 5], ids=["never", "before the claim", "after it"])
def test_a_dropped_result_is_a_violation_unless_its_process_was_suspended_after_the_claim(
    suspended_after_s: int | None,
) -> None:
    """Its notification was purged while it was suspended for longer than the retention (seed 1700400100)."""

    async def main(loop: VirtualLoop) -> None:
        state = SimulationState(build_faultless_plan(1, 1), VirtualClock(loop), Trace(None))
        rows, log = row_checker(state), logging.getLogger("homing.settler")
        await asyncio.sleep(1)
        if suspended_after_s == 0:
            state.paused_ms["p1"] = state.ms
        await asyncio.sleep(1)
        claim = make_claim(worker="p1", started_at=state.now)
        rows.removed[claim.id] = shadow_of(claim)
        await asyncio.sleep(60)
        if suspended_after_s:
            state.paused_ms["p1"] = state.ms
        settler = Settler(PurgedStore(rows), VirtualClock(loop))  # type: ignore[arg-type]
        checks = LogChecker(state)
        log.addHandler(checks)
        try:
            running = asyncio.create_task(settler.run())
            settler.add(settlement_of(claim), claim)
            await asyncio.wait({running}, timeout=1)
            running.cancel()
            await asyncio.wait({running})
        finally:
            log.removeHandler(checks)
        assert settler.stale == 1
        assert (state.violation is None) is bool(suspended_after_s)

    run_virtual(main)


def test_such_a_suspension_excuses_no_other_error() -> None:
    async def main(loop: VirtualLoop) -> None:
        state = SimulationState(build_faultless_plan(1, 1), VirtualClock(loop), Trace(None))
        state.results_of_purged = 1
        record = logging.LogRecord(
            "homing.settler", logging.ERROR, __file__, 1, "the store records no results", (), None
        )
        with pytest.raises(Violation, match="the engine reports an error"):
            LogChecker(state).emit(record)

    run_virtual(main)
