"""The demo's simulated providers, its retry policy with short delays, and the worker process that it kills.

`python -m homing.cli.demo.fake_providers FOLDER` runs that worker process. Its providers take a minute per
send, and its timeout is longer than the demo's, so the demo kills it while it holds leases.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from homing import compose
from homing.core.lifecycle.outcomes import Outcome
from homing.core.notifications import Channel, OutcomeKind
from homing.core.ports.providers import Delivery
from homing.core.ports.stores import Backend
from homing.core.routing.breaker import BreakerPolicy
from homing.engine.provider_roster import Listed
from homing.library import Homing

SETTINGS = """\
# The demo's settings. The delays are at most two seconds, so that half a minute shows what takes hours.
store = "homing.db"

[worker]
poll_ms = "200ms"
lease_ms = "1500ms"

[[rules]]
name = "demo"
max_attempts = 6
backoff = "exponential"
base_ms = "400ms"
factor = 2.0
cap_ms = "2s"
jitter = "additive"
jitter_ms = "100ms"
timeout_ms = "1s"
"""

_SLOW_SETTINGS = "slow-worker.toml"

BREAKER = BreakerPolicy(failures=5, open_ms=60_000, health_every_ms=400, ramp_ms=3_000, ramp_per_second=4.0)


class DemoProvider:
    """A simulated provider. The demo switches it on and off."""

    def __init__(self, name: str, *, latency_ms: int = 120) -> None:
        self.name = name
        self.latency_ms = latency_ms
        self.up = True
        self.no_such_mailbox: set[str] = set()
        self.accepted_count = 0

    async def send(self, delivery: Delivery) -> Outcome:
        await asyncio.sleep(self.latency_ms / 1000)
        if not self.up:
            return Outcome(OutcomeKind.TRANSIENT, error_code="503", error="service unavailable")
        if delivery.address in self.no_such_mailbox:
            error = f"no such mailbox: {delivery.address}"
            return Outcome(OutcomeKind.BAD_RECIPIENT, error_code="550", error=error)
        self.accepted_count += 1
        return Outcome(OutcomeKind.ACCEPTED, provider_message_id=f"{self.name}-{self.accepted_count}")

    async def check(self) -> bool:
        return self.up

    async def close(self) -> None:
        """Does nothing: a simulated provider has no connections."""


CHANNELS = (Channel.EMAIL, Channel.SMS)


def build_demo_engine(
    folder: Path, backend: Backend, *providers: DemoProvider, settings: str = "homing.toml"
) -> Homing:
    """Builds the demo's engine with these providers, tried in this order."""
    listed = {
        one.name: Listed(id=one.name, provider=one, channels=CHANNELS, breaker=BREAKER) for one in providers
    }
    return Homing(backend, config_file=folder / settings, providers=listed)


async def _work_until_killed(folder: Path) -> None:
    slow = [DemoProvider(name, latency_ms=60_000) for name in ("pigeon", "hawk")]
    (folder / _SLOW_SETTINGS).write_text(SETTINGS.replace('timeout_ms = "1s"', 'timeout_ms = "4s"'))
    backend = compose.build_store(str(folder / "homing.db"))
    async with build_demo_engine(folder, backend, *slow, settings=_SLOW_SETTINGS) as homing:
        await homing.run_worker()


if __name__ == "__main__":
    asyncio.run(_work_until_killed(Path(sys.argv[1])))
