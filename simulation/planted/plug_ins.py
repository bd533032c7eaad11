"""Planted bugs in the use of timers and bridges."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import replace

from homing.core.lifecycle.due_times import DueTime
from homing.core.ports.bridges import HandledMessage
from homing.engine.delivery import timers
from homing.engine.delivery.timers import Timers
from homing.engine.delivery.wake_timer import WakeTimer
from homing.engine.intake import bridges
from homing.engine.intake.accept import SendOperations
from homing.engine.intake.requests import PriorAttempts
from homing.engine.settings import LaneSlots
from simulation.plan import NO_FAULTS, BridgePlan, FaultPlan, SimulationPlan, TimerPlan, plain_plan
from simulation.planted import bugs

BUGS = bugs.BugList()

_POLL_MS = 5_000


def timed(seed: int) -> SimulationPlan:
    """Returns a plan with a bad timer, in which nothing else delays a claim."""
    plan = plain_plan(seed, bugs.REQUESTS)
    providers = tuple(replace(c, rate=None, max_in_flight=1_000, host_slots=None) for c in plan.providers)
    return replace(
        bugs.patient(plan),
        fault_plan=replace(NO_FAULTS, trouble=0.2),
        processes=2,
        cron=False,
        providers=tuple(replace(c, breaker=replace(c.breaker, failures=1_000)) for c in providers),
        slots=LaneSlots(priority=100, standard=100, bulk=100),
        poll_ms=_POLL_MS,
        timer=TimerPlan(lose=0.5, repeat=0.3, fail=0.1, longest_delay_ms=60_000),
        max_lateness_ms=_POLL_MS + 100,
    )


def unnotified(seed: int) -> SimulationPlan:
    """Returns a plan without a timer, in which the store does not report commits, as behind a pooler."""
    plan = timed(seed)
    return replace(plan, timer=None, is_notified=False, max_lateness_ms=plan.poll_ms // 5 + 100)


def bridged(seed: int) -> SimulationPlan:
    """Returns a plan with a bridge, in which processes crash and the broker is often unavailable."""
    fault_plan = FaultPlan(crash_every_ms=10_000, crash_per_call=0.002, error_per_call=0.04)
    return replace(
        plain_plan(seed, bugs.REQUESTS),
        fault_plan=fault_plan,
        processes=2,
        bridge=BridgePlan(messages=bugs.REQUESTS, fail=0.1),
    )


@BUGS.plant("a worker sleeps until it is woken", "18", "14", on=(WakeTimer, "sleep"), plan=timed, seed=1_001)
def trusts_its_timers(real: Any) -> Any:
    async def sleep(self: Any, wait_ms: int) -> None:
        await real(self, 3_600_000)

    return sleep


def _all_end(real: Any) -> Any:
    """Makes `Timers.listen` wait until every timer has stopped, as if the store reported nothing."""

    async def listen(self: Any) -> None:
        listening = [feed.listen(self.wake) for feed in self._feeds]
        await asyncio.gather(*listening, return_exceptions=True)

    return listen


def ignoring_cancellation(seed: int) -> SimulationPlan:
    """Returns a plan whose timer goes on to listen when it is cancelled."""
    plan = timed(seed)
    assert plan.timer is not None
    return replace(plan, timer=replace(plan.timer, ignores_cancellation=True))


@BUGS.plant(
    "a worker waits for a timer that ignores its cancellation",
    "31",
    on=(timers, "call_within"),
    plan=ignoring_cancellation,
    also=(Timers, "listen", _all_end),
)
def waits_for_its_timers(real: Any) -> Any:
    async def call_within(call: Any, timeout_ms: float | None) -> Any:
        return await call()

    return call_within


@BUGS.plant(
    "a worker polls no sooner without reports", "18", on=(Timers, "poll_interval_ms"), plan=unnotified
)
def polls_no_sooner(real: Any) -> Any:
    def poll_interval_ms(self: Any, poll_ms: int) -> int:
        return poll_ms

    return poll_interval_ms


@BUGS.plant(
    "a timer gets due times before the commit", "18", on=(SendOperations, "_accept"), plan=timed, seed=1_003
)
def hint_before_the_commit(real: Any) -> Any:
    async def accept(self: Any, batch: Any, *args: Any, **options: Any) -> Any:
        due = [DueTime(new.id, 0, new.priority) for one in batch for new in one.notifications]
        self._timers.schedule(due)
        return await real(self, batch, *args, **options)

    return accept


@BUGS.plant(
    "a message is acknowledged before the commit",
    "19",
    on=(bridges._BridgeRunner, "_accept"),
    plan=bridged,
    seed=1_003,
)
def acknowledged_too_early(real: Any) -> Any:
    async def accept(self: Any, messages: Any) -> Any:
        await self._bridge.acknowledge([HandledMessage(message=one) for one in messages])
        await real(self, messages)
        return []

    return accept


@BUGS.plant(
    "the key of a message is ignored", "19", on=(bridges, "_idempotency_key"), plan=bridged, seed=1_003
)
def message_without_key(real: Any) -> Any:
    return lambda bridge, key: None


@BUGS.plant(
    "a message whose attempts are used up waits",
    "30",
    on=(PriorAttempts, "leaves_none"),
    plan=bridged,
    seed=1_001,
)
def used_up_messages_wait(real: Any) -> Any:
    return lambda self, policy: False


@BUGS.plant(
    "messages are rejected while the store is unavailable",
    "19",
    on=(bridges._MessageAcceptor, "_accept_together"),
    plan=bridged,
    seed=1_001,
)
def rejects_while_the_store_is_away(real: Any) -> Any:
    async def accept_together(self: Any, bridge: str, prepared: Any) -> Any:
        try:
            return await real(self, bridge, prepared)
        except Exception as error:
            return [HandledMessage(message=message, rejection=str(error)) for message, _ in prepared]

    return accept_together
