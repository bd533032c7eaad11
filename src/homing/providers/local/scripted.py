"""A provider that returns prepared outcomes, for tests and trials."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from homing.core.lifecycle.outcomes import Outcome
from homing.core.notifications import OutcomeKind
from homing.core.ports.providers import Delivery

ScriptStep = Outcome | OutcomeKind | Callable[[Delivery], Outcome]


HANG = Outcome(OutcomeKind.AMBIGUOUS, error_code="hang")
"""A step that never returns, so that the attempt runs into its timeout."""


class ScriptedProvider:
    """Returns the outcomes of its script in order, and after them always the `usual` one. Records every
    delivery.
    """

    def __init__(
        self,
        name: str = "scripted",
        script: Iterable[ScriptStep | str] = (),
        *,
        usual: ScriptStep | str = OutcomeKind.ACCEPTED,
        latency_ms: int = 0,
    ) -> None:
        self.name = name
        self.script: deque[ScriptStep] = deque(_step(step) for step in script)
        self.usual = _step(usual)
        self.latency_ms = latency_ms
        self.up = True
        """The result of the health check."""
        self.sent: list[Delivery] = []
        """Every delivery that was passed to `send`, in order, whatever the outcome."""

    async def send(self, delivery: Delivery) -> Outcome:
        self.sent.append(delivery)
        step = self.script.popleft() if self.script else self.usual
        if self.latency_ms:
            await asyncio.sleep(self.latency_ms / 1000)
        if step is HANG:
            await asyncio.Event().wait()
        outcome = (
            step(delivery) if callable(step) else Outcome(step) if isinstance(step, OutcomeKind) else step
        )
        if outcome.kind is OutcomeKind.ACCEPTED and outcome.provider_message_id is None:
            return replace(outcome, provider_message_id=f"{self.name}-{len(self.sent)}")
        if outcome.kind is not OutcomeKind.ACCEPTED and outcome.error is None:
            return replace(
                outcome, error_code=outcome.kind.value, error=f"{self.name} returned {outcome.kind.value}"
            )
        return outcome

    async def check(self) -> bool:
        return self.up

    async def close(self) -> None:
        """Does nothing: there is no connection."""


def _step(given: ScriptStep | str) -> ScriptStep:
    """Returns the step. In settings, a step is the name of an outcome."""
    return OutcomeKind(given) if isinstance(given, str) else given
