"""`homing policy table`: every delay of every rule, exactly."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from homing.cli.exits import ExitCode
from homing.cli.policy import policy
from homing.cli.screen import print_json, styled
from homing.cli.shared import Json, Options, command
from homing.cli.words import span

if TYPE_CHECKING:
    from homing.core.policy import Preset


@command(policy, "table")
def table(
    options: Options,
    preset: Annotated[
        str | None,
        typer.Argument(metavar="[PRESET]", help="priority, simple, channel, fixed or broker; default: all."),
    ] = None,
    json: Json = False,
) -> int:
    """Tabulate the delays of a preset's rules, or of all presets."""
    from homing.core.presets import PRESETS
    from homing.core.presets import preset as named

    chosen = PRESETS.values() if preset is None else (named(preset),)
    rows = [row for one in chosen for row in _rows(one)]
    if json:
        print_json(rows)
        return ExitCode.OK
    lines = []
    for name, group in groupby(rows, key=lambda row: row["policy"]):
        for row in group:
            first = styled(name, "bold") if row["attempt"] == 1 else ""
            up_to = span(row["max_ms"]) if row["max_ms"] != row["min_ms"] else ""
            lines.append((first, row["attempt"], span(row["min_ms"]), up_to, span(row["cumulative_min_ms"])))
    options.screen.table(
        ("POLICY", "AFTER ATTEMPT>", "WAIT>", "WITH JITTER UP TO>", "IN ALL AT LEAST>"), lines
    )
    return ExitCode.OK


def _rows(preset: Preset) -> Iterator[dict[str, Any]]:
    """One for each retry: the wait after attempt n, its bounds, and the sum of the shortest so far."""
    from homing.core.backoff import bounds_ms
    from homing.core.policy import RetryPolicy

    for rule in preset.rules:
        policy = RetryPolicy(**rule.policy.given())
        total = last = 0
        for attempt in range(1, policy.max_attempts):
            low, high = bounds_ms(policy, attempt, last)
            total, last = total + low, high
            yield {
                "policy": f"{preset.name}/{rule.name}",
                "attempt": attempt,
                "min_ms": low,
                "max_ms": high,
                "cumulative_min_ms": total,
            }
