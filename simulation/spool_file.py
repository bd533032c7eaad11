"""The spool file of a simulation run. Callers' requests wait there while the store is unavailable.

The file is real, and all processes share it. Reading and writing it takes no virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec import Struct

from homing.core.notifications import Status
from simulation.database import SimulatedDatabase
from simulation.shadow_state import SimulationState


class _SpooledRequest(Struct, frozen=True):
    """A request whose caller got the answer that it is spooled."""

    ids: tuple[str, ...]
    poisoned: bool
    """True if the store refuses the request for good."""


class SpoolFile:
    """The file, and the answers that callers got about it. Checks invariants 2 and 22."""

    def __init__(self, state: SimulationState) -> None:
        self._state = state
        self._folder = TemporaryDirectory(prefix="homing-simulation-")
        self._answered: list[_SpooledRequest] = []
        self.path = Path(self._folder.name) / "spool"

    @property
    def waiting(self) -> int:
        """Number of requests in the file."""
        return len(self.path.read_bytes().splitlines()) if self.path.exists() else 0

    def answered(self, ids: Sequence[str], *, poisoned: bool) -> None:
        """Records that a caller got the answer that its request is spooled under these ids."""
        self._answered.append(_SpooledRequest(tuple(ids), poisoned))
        self._state.note("sim", f"spooled {len(ids)} {'poisoned ' if poisoned else ''}notifications")

    def finish(self, database: SimulatedDatabase, removed: Collection[str]) -> None:
        """Checks, after the run, what has become of the requests."""
        for one in self._answered:
            for id in one.ids:
                if id in removed:
                    continue
                stored = database.find_row(id)
                if stored is None:
                    self._state.violate("2", "spooled, but never stored", id)
                refused = stored.status is Status.FAILED and not (stored.attempts or stored.provider)
                if refused is not one.poisoned:
                    kind = "a poisoned" if one.poisoned else "a valid"
                    self._state.violate("22", f"{kind} request of the spool became {stored.status}", id)

    def close(self) -> None:
        """Deletes the file."""
        self._folder.cleanup()


def run_inline(
    loop: asyncio.AbstractEventLoop, executor: object, function: Callable[..., Any], *args: Any
) -> asyncio.Future[Any]:
    """Calls a function that would run in a thread. Replaces `run_in_executor` of the virtual loop."""
    done = loop.create_future()
    try:
        done.set_result(function(*args))
    except Exception as error:
        done.set_exception(error)
    return done
