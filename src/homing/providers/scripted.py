"""A provider that does as it is told: for tests, the demo and rehearsals of an outage."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from homing.core.model import Outcome, OutcomeKind
from homing.core.ports import Delivery

Step = Outcome | OutcomeKind | Callable[[Delivery], Outcome]

HANG = Outcome(OutcomeKind.AMBIGUOUS, error_code="hang")
"""As a step: never answers, until the attempt's timeout ends it."""


class ScriptedProvider:
    """Answers with the steps of its script, then with its usual answer; keeps what it was asked."""

    def __init__(
        self,
        name: str = "scripted",
        script: Iterable[Step | str] = (),
        *,
        usual: Step | str = OutcomeKind.ACCEPTED,
        latency_ms: int = 0,
    ) -> None:
        self.name = name
        self.script: deque[Step] = deque(_step(step) for step in script)
        self.usual = _step(usual)
        self.latency_ms = latency_ms
        self.up = True
        """What a health check says."""
        self.sent: list[Delivery] = []
        """Every delivery that was asked for, in order, whatever the answer."""

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
                outcome, error_code=outcome.kind.value, error=f"{self.name} says {outcome.kind.value}"
            )
        return outcome

    async def check(self) -> bool:
        return self.up

    async def close(self) -> None:
        """Nothing to close."""


def _step(given: Step | str) -> Step:
    """From the settings a step comes as a word."""
    return OutcomeKind(given) if isinstance(given, str) else given
