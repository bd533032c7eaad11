"""`homing policy table`: tabulates the retry delays of presets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from homing.cli.exits import ExitCode
from homing.cli.policy import policy
from homing.cli.screen import print_json, styled
from homing.cli.shared import Json, Options, command
from homing.cli.words import span

if TYPE_CHECKING:
    from homing.core.policy import Preset
    from homing.engine.rule_views import Delay


@command(policy, "table")
def table(
    options: Options,
    preset: Annotated[
        str | None,
        typer.Argument(
            metavar="[PRESET]", help="priority, simple, channel, fixed or broker; default: all presets."
        ),
    ] = None,
    json: Json = False,
) -> int:
    """Tabulate the retry delays of one preset, or of all."""
    import msgspec

    from homing.core.presets import PRESETS
    from homing.core.presets import preset as named

    chosen = PRESETS.values() if preset is None else (named(preset),)
    rows = [row for one in chosen for row in _rows(one)]
    if json:
        print_json([{"policy": name, **msgspec.to_builtins(delay)} for name, delay in rows])
        return ExitCode.OK
    lines = []
    for name, delay in rows:
        first = styled(name, "bold") if delay.attempt == 1 else ""
        up_to = span(delay.max_ms) if delay.max_ms != delay.min_ms else ""
        lines.append((first, delay.attempt, span(delay.min_ms), up_to, span(delay.cumulative_min_ms)))
    options.screen.table(
        ("POLICY", "AFTER ATTEMPT>", "WAIT>", "WITH JITTER UP TO>", "TOTAL AT LEAST>"), lines
    )
    return ExitCode.OK


def _rows(preset: Preset) -> Iterator[tuple[str, Delay]]:
    """Yields the rule's name and the delay for each retry of each rule."""
    from homing.core.policy import RetryPolicy
    from homing.engine.rule_views import delays

    for rule in preset.rules:
        for delay in delays(RetryPolicy(**rule.policy.given())):
            yield f"{preset.name}/{rule.name}", delay
