"""`homing reload`: makes all running processes read their settings again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from homing.cli.common.exit_codes import ExitCode
from homing.cli.common.options import Json, Options, Who, Why, command, login_name, open_engine, record_audit
from homing.cli.common.reload_watch import LOOK_EVERY_S
from homing.cli.common.screen import print_json, styled
from homing.cli.common.units import parse_duration_ms
from homing.cli.root import app

if TYPE_CHECKING:
    from homing.engine.operations.reload_requests import ReloadAnswer
    from homing.library import Homing

_CHECK_EVERY_S = 0.2

_MIN_WAIT_S = LOOK_EVERY_S + 2
"""Time in which a process that sends no heartbeat, because it only serves the API, finds the request."""


@command(app, "reload")
async def reload(
    options: Options,
    wait: Annotated[
        str, typer.Option("--wait", metavar="DURATION", help="How long to wait for the processes.")
    ] = "15s",
    who: Who = None,
    why: Why = "",
    json: Json = False,
) -> int:
    """Make running processes read their settings again.

    Credentials and other settings of providers, and JWT keys, need no restart.
    """
    wait_ms = parse_duration_ms(wait, "--wait")
    # Building the engine checks the settings here, so that a mistake reaches no process.
    async with open_engine(options, existing=True) as homing:
        by = f"cli:{who or login_name()}"
        await record_audit(homing, "setting.reload", "all processes", who=who, why=why)
        request = await homing.reload_requests.ask(who=by, why=why)
        answers, silent = await _wait_for_answers(homing, request.number, wait_ms)
    if json:
        print_json({"items": answers, "silent": silent})
    else:
        _show(options, answers, silent)
    return ExitCode.PARTIAL if silent or any(one.error for one in answers) else ExitCode.OK


async def _wait_for_answers(
    homing: Homing, number: int, wait_ms: int
) -> tuple[tuple[ReloadAnswer, ...], list[str]]:
    """Returns the answers, and the live workers that have not answered in time.

    Processes that only serve the API are not listed anywhere, so they get some time in any case.
    """
    from homing.engine.operations.workers import PROCESS_SUFFIX

    loop = asyncio.get_running_loop()
    ends_at = loop.time() + wait_ms / 1000
    others_end_at = min(ends_at, loop.time() + _MIN_WAIT_S)
    while True:
        answers = await homing.reload_requests.answers(number)
        answered = {one.worker for one in answers}
        live = [one.name for one in await homing.workers() if one.state.value == "live"]
        silent = [name for name in live if name not in answered and not name.endswith(PROCESS_SUFFIX)]
        if loop.time() >= (ends_at if silent else others_end_at):
            return answers, silent
        await asyncio.sleep(_CHECK_EVERY_S)


def _show(options: Options, answers: tuple[ReloadAnswer, ...], silent: list[str]) -> None:
    screen = options.screen
    for one in answers:
        if one.error:
            screen.line(one.worker, styled("refused", "red"), f"nothing was changed: {one.error}")
            continue
        screen.line(one.worker, styled("reloaded", "green"), ", ".join(one.changed) or "no change")
        if one.needs_restart:
            screen.line(f"  a restart is needed for {', '.join(one.needs_restart)}")
    for name in silent:
        screen.line(name, styled("no answer", "yellow"), "it is busy or runs an older release")
    if not answers and not silent:
        screen.line("no process has answered; one that starts later reads the new settings")
