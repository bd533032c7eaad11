"""Measures what keywords cost when the structs of the delivery path are built, compared with positions.

    python bench/struct_construction.py [--rounds N]

Every struct below is built once per notification or attempt, with a value for each field that its function
sets. `compiled` calls a generated function that takes keywords and passes them on by position. Rounds
alternate in one process, so other load affects all three. The figures to read are the ratios.

Keywords are matched with the fields one by one, so their cost grows with the square of the number of fields.
Measured with Python 3.11 and msgspec 0.22: up to 14 fields, keywords cost at most 0.05 µs more (ratio 1.3 to
1.7). For `NewNotification`, `Claim` and `Row` they cost 0.9 to 2 µs more (ratio 9, 4 and 4), and the compiled
function is slower still. So only these three are built by position, each in one function.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

from msgspec.structs import astuple

from homing.core.lifecycle.claims import Submission
from homing.core.lifecycle.outcomes import AttemptRecord, Settlement
from homing.core.lifecycle.rows import claim_of, lease, new_row
from homing.core.notifications import OutcomeKind, Status
from homing.engine.delivery.deliverer import build_delivery
from homing.testing.builders import a_notification

_CALLS = 20_000

Build = Callable[[], object]


def samples() -> dict[str, tuple[Any, int]]:
    """Returns a value of each struct and the number of fields that are set, by the function that does so."""
    new = a_notification()
    submission = Submission("t", "b", (new,))
    row = new_row(new, submission, 1_000).row
    lease(row, "w", 10_000, 2_000)
    claim = claim_of(row, new.message, 1_000)
    attempt = AttemptRecord(
        number=1, provider="mail", outcome=OutcomeKind.ACCEPTED, started_at=1_000, latency_ms=20, worker="w"
    )
    settlement = Settlement(
        id="id",
        token=1,
        worker="w",
        started_at=1_000,
        status=Status.SENT,
        provider="mail",
        outlet="mail",
        max_age_ms=1,
        attempt=attempt,
    )
    return {
        "engine/intake/requests.py _notification": (new, 22),
        "engine/intake/requests.py _submission": (submission, 7),
        "core/lifecycle/rows.py new_row": (row, len(row.__struct_fields__)),
        "core/lifecycle/rows.py claim_of": (claim, len(claim.__struct_fields__)),
        "engine/delivery/deliverer.py build_delivery": (build_delivery(claim, 5_000), 14),
        "core/retry/decide.py _record": (attempt, 9),
        "core/retry/decide.py _settle_final": (settlement, 13),
    }


def ways(value: Any, number: int) -> dict[str, Build]:
    """Returns functions that build a struct `_CALLS` times with its first `number` fields."""
    names, values = value.__struct_fields__[:number], astuple(value)[:number]
    places, keywords = ", ".join(names), ", ".join(f"{name}={name}" for name in names)
    scope: dict[str, Any] = {"struct": type(value), "values": values}
    exec(f"def compiled({places}): return struct({places})", scope)
    made: dict[str, Build] = {}
    calls = {
        "positions": f"struct({places})",
        "keywords": f"struct({keywords})",
        "compiled": f"compiled({keywords})",
    }
    for way, call in calls.items():
        exec(f"def build():\n {places}, = values\n for _ in range({_CALLS}): {call}", scope)
        made[way] = scope["build"]
    return made


def took_us(build: Build) -> float:
    began = time.process_time()
    build()
    return (time.process_time() - began) / _CALLS * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    for where, (value, number) in samples().items():
        builds = ways(value, number)
        figures: dict[str, list[float]] = {way: [] for way in builds}
        for _ in range(rounds):
            for way, build in builds.items():
                figures[way].append(took_us(build))
        each_us = {way: statistics.median(found) for way, found in figures.items()}
        least = each_us["positions"]
        told = ", ".join(f"{way} {us:.2f} µs ({us / least:.1f})" for way, us in each_us.items())
        print(f"{where:44} {type(value).__name__:16} {number:2} fields: {told}")


if __name__ == "__main__":
    main()
