"""The simulated providers end a call for the checkers in the moment in which it ends for its process."""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from random import Random
from typing import Any

from msgspec.structs import replace
from simulation.plan import build_faultless_plan
from simulation.shadow_state import ProviderCall, SimulationState
from simulation.simulated_providers import SimulatedProvider, SimulatedProviderClient, blocking_client
from simulation.trace import Trace

from homing.core.lifecycle.outcomes import Outcome
from homing.core.ports.providers import Delivery
from homing.rehearsal.virtual_time import TASK_GROUP, VirtualClock, VirtualLoop, run_virtual
from support.sms_deliveries import a_delivery


class Process:
    """A process that calls a provider."""

    name = "p1"
    dead = False


class CallRecorder:
    """Records the calls of a provider, in place of the checkers."""

    def __init__(self, state: SimulationState) -> None:
        self.state = state
        self.calls: list[ProviderCall] = []

    def send_begins(self, process: str, provider: str, delivery: Delivery) -> ProviderCall:
        call = ProviderCall(
            provider=provider,
            process=process,
            id=delivery.notification_id,
            attempt=delivery.attempt,
            began_ms=0,
            due_ms=delivery.timeout_ms,
            jumps=0,
        )
        self.calls.append(call)
        return call

    def send_ends(self, call: ProviderCall, outcome: Outcome | None, *, received: bool) -> None:
        assert not call.over, "a call ends once"
        call.over, call.outcome = received, outcome


class HangingProvider(SimulatedProvider):
    """A provider that never answers."""

    def _kind(self, delivery: Delivery) -> str:
        return "hang"


def hanging_provider(loop: VirtualLoop) -> tuple[HangingProvider, CallRecorder]:
    """Returns a provider that never answers, and the recorder of its calls."""
    plan = build_faultless_plan(1, 1)
    watch = CallRecorder(SimulationState(plan, VirtualClock(loop), Trace(None)))
    provider = HangingProvider(
        replace(plan.providers[0], id="mute"),
        fault_plan=plan.fault_plan,
        rng=Random(1),
        watch=watch,  # type: ignore[arg-type]
        report=lambda delay_ms, receipt: None,
        route_of=lambda delivery: (),
    )
    return provider, watch


def test_a_call_that_its_process_gave_up_is_over_at_once() -> None:
    """A settlement of the attempt may be written before the loop runs the cancelled task again.

    A call that ended only then was reported as a violation of invariant 5, although the engine was right
    (seeds 1387752175 and 3125895647 at commit de8869b).
    """

    async def main(loop: VirtualLoop) -> None:
        provider, watch = hanging_provider(loop)
        client = SimulatedProviderClient(provider, Process(), begins=True)
        ended: list[Any] = []
        client.begin([(a_delivery(), "first"), (a_delivery(notification_id="n-2"), "second")], ended.extend)
        await asyncio.sleep(4)
        assert [call.over for call in watch.calls] == [False, False]
        client.give_up({"first"})
        assert [call.over for call in watch.calls] == [True, False]
        await asyncio.sleep(1)
        assert [call.over for call in watch.calls] == [True, False]
        assert ended == []

    run_virtual(main)


def test_a_call_of_a_plain_function_begins_at_once_although_its_process_is_suspended_then() -> None:
    """The lease was checked just before, so the send counts from then (seed 2600000060)."""

    async def main(loop: VirtualLoop) -> None:
        provider, watch = hanging_provider(loop)
        context = copy_context()
        context.run(TASK_GROUP.set, "p1")
        client = blocking_client(provider, Process())
        sending = loop.create_task(client.send(a_delivery()), context=context)
        await asyncio.sleep(0)
        loop.freeze("p1")
        assert len(watch.calls) == 1
        loop.cancel_group("p1")
        loop.thaw("p1")
        await asyncio.wait({sending})
        assert [call.over for call in watch.calls] == [True], "a call that never ran is over too"

    run_virtual(main)
