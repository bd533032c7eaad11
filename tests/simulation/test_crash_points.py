"""A process dies at every point of its work: nothing is lost or done twice."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any
from unittest.mock import patch

import pytest
from msgspec.structs import replace
from simulation.database import StatementFault
from simulation.plan import SimulationPlan, build_faultless_plan
from simulation.process import SimProcess
from simulation.run import SimulationReport, SimulationRun, run_simulation
from simulation.store_boundary import FaultyStore

pytestmark = pytest.mark.slow

FIRST = "p1"


def few(seed: int) -> SimulationPlan:
    """A few notifications, two processes, no other faults. Nothing waits longer than a minute and a half."""
    plan = replace(build_faultless_plan(seed, 6), spread_ms=50, faults_ms=1_000, processes=2, cron=False)
    rules = tuple(replace(rule, policy=replace(rule.policy, max_age_ms=90_000)) for rule in plan.rules)
    return replace(plan, rules=rules)


def crash_at_call(number: int) -> tuple[SimulationReport, bool]:
    """A simulation in which the first process dies at its n-th call to the store, before or after it."""
    travels = 0
    real = FaultyStore._travel

    async def travel(self: FaultyStore, name: str, leg: str) -> None:
        nonlocal travels
        if self._host.name == FIRST:
            travels += 1
            if travels == number:
                self._host.crash(f"{leg} {name}")
        await real(self, name, leg)

    with patch.object(FaultyStore, "_travel", travel):
        return run_simulation(few(1)), travels >= number


def test_a_crash_before_or_after_every_store_call_loses_nothing() -> None:
    for number in range(1, 120):
        report, crashed = crash_at_call(number)
        assert report.lifetimes >= 1
        assert report.crashes == crashed
    assert crashed, "the process made fewer calls than there were crashes"


@pytest.mark.parametrize("offset_ms", range(0, 600, 150))
def test_a_crash_in_any_millisecond_loses_nothing(offset_ms: int) -> None:
    real = SimulationRun._script

    for at_ms in range(offset_ms, offset_ms + 150, 5):

        async def script(self: SimulationRun, at_ms: int = at_ms) -> None:
            def crash() -> None:
                for process in list(self._processes):
                    if process.name == FIRST:
                        process.crash(f"at {at_ms}")

            self._loop.call_later(at_ms / 1000, crash)
            await real(self)

        with patch.object(SimulationRun, "_script", script):
            assert run_simulation(few(9)).crashes == 1


def test_a_dead_process_has_no_further_effect() -> None:
    """Its tasks run their cleanup as they end, which must have no effect."""
    reached: list[str] = []
    real = FaultyStore._intercept

    async def call(self: FaultyStore, operation: str, perform: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        dead = self._host.dead
        result = await real(self, operation, perform)
        if dead:
            reached.append(f"{self._host.name} {operation}")
        return result

    died: list[str] = []
    crash = SimProcess.crash

    def note(self: SimProcess, why: str) -> None:
        died.append(self.name)
        crash(self, why)

    plan = build_faultless_plan(5, 80)
    rough = replace(plan, fault_plan=replace(plan.fault_plan, crash_every_ms=2_000, trouble=0.3))
    with patch.object(FaultyStore, "_intercept", call), patch.object(SimProcess, "crash", note):
        run_simulation(rough)
    assert len(died) > 5
    assert reached == []


def fail_at_statement(number: int) -> tuple[SimulationReport, bool]:
    """A simulation in which the n-th statement of the first process fails: locked or, if n is even, full."""
    fault = StatementFault(number, full=number % 2 == 0)

    def next_fault(self: FaultyStore) -> StatementFault | None:
        return fault if self._host.name == FIRST and fault.statement > 0 else None

    with patch.object(FaultyStore, "_next_fault", next_fault):
        return run_simulation(few(1)), fault.statement == 0


def test_a_failure_of_any_statement_changes_nothing_and_loses_nothing() -> None:
    for number in range(1, 250):
        report, struck = fail_at_statement(number)
        assert struck, "the process executes more statements than that"
        assert report.lifetimes >= 1
