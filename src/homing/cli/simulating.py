"""The simulator that `homing serve` gives to the API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from homing.core.rehearsal import Rehearsal, RehearsalReport


def simulator() -> Callable[[Rehearsal], Awaitable[RehearsalReport]]:
    """Rehearses an outage in a process of its own. Imported when it is first asked: it is large."""

    async def simulate(rehearsal: Rehearsal) -> RehearsalReport:
        from homing.sim.apart import rehearse_apart

        return await rehearse_apart(rehearsal)

    return simulate
