"""The demo's two providers, its short policy, and the worker process that it kills.

`python -m homing.cli.demo_birds STORE` is that process: it claims and never finishes.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from homing.core.breaker import BreakerPolicy
from homing.core.model import Channel, Outcome, OutcomeKind
from homing.core.policy import Backoff, Jitter, PolicyPatch, Rule
from homing.core.ports import Delivery
from homing.engine.roster import Listed
from homing.library import Homing

RULE = Rule(
    name="demo",
    policy=PolicyPatch(
        max_attempts=6,
        backoff=Backoff.EXPONENTIAL,
        base_ms=400,
        factor=2.0,
        cap_ms=2_000,
        jitter=Jitter.ADDITIVE,
        jitter_ms=100,
        timeout_ms=1_000,
    ),
)
BREAKER = BreakerPolicy(failures=5, open_ms=60_000, health_every_ms=500, ramp_ms=3_000, ramp_per_second=4.0)
SETTINGS: dict[str, Any] = {
    "rules": [RULE],
    "worker": {"poll_ms": 200, "lease_ms": 1_500},
    "sinks": {"log": {}},
}


class Bird:
    """A provider that flies, tires and recovers on command."""

    def __init__(self, name: str, *, latency_ms: int = 120) -> None:
        self.name = name
        self.latency_ms = latency_ms
        self.up = True
        self.no_such_mailbox: set[str] = set()
        self.landed = 0

    async def send(self, delivery: Delivery) -> Outcome:
        await asyncio.sleep(self.latency_ms / 1000)
        if not self.up:
            return Outcome(OutcomeKind.TRANSIENT, error_code="503", error="service unavailable")
        if delivery.address in self.no_such_mailbox:
            error = f"no such mailbox: {delivery.address}"
            return Outcome(OutcomeKind.BAD_RECIPIENT, error_code="550", error=error)
        self.landed += 1
        return Outcome(OutcomeKind.ACCEPTED, provider_message_id=f"{self.name}-{self.landed}")

    async def check(self) -> bool:
        return self.up

    async def close(self) -> None:
        """Nothing to close."""


def engine(store: Any, *birds: Bird) -> Homing:
    """The engine of the demo over these providers, tried in this order."""
    listed = {
        bird.name: Listed(id=bird.name, provider=bird, channels=(Channel.EMAIL,), breaker=BREAKER)
        for bird in birds
    }
    return Homing(store, providers=listed, **SETTINGS)


async def _work_until_killed(store: str) -> None:
    sleepy = [Bird(name, latency_ms=60_000) for name in ("pigeon", "hawk")]
    async with engine(store, *sleepy) as homing:
        await homing.run_worker()


if __name__ == "__main__":
    asyncio.run(_work_until_killed(sys.argv[1]))
