"""The outage simulator that `homing serve` provides to the API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from homing.core.rehearsal import Rehearsal, RehearsalReport


def simulator() -> Callable[[Rehearsal], Awaitable[RehearsalReport]]:
    """Returns a function that simulates an outage in a child process. Imports the simulator on first use."""

    async def simulate(rehearsal: Rehearsal) -> RehearsalReport:
        from homing.sim.apart import rehearse_apart

        return await rehearse_apart(rehearsal)

    return simulate
