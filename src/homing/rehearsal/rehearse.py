"""Rehearses outages by running the real engine on virtual time over SQLite in memory.

`homing policy simulate` and the API use this module. A rehearsal runs in this process or in a subprocess. The
same rehearsal always gives the same report.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import msgspec
from msgspec import Struct

from homing.core.errors import ConfigError, HomingError, InvalidRequest
from homing.core.rehearsal import Rehearsal, RehearsalReport
from homing.rehearsal.report import build_report
from homing.rehearsal.run import OnProgress, no_progress, run_rehearsal


def rehearse(rehearsal: Rehearsal, on_progress: OnProgress = no_progress) -> RehearsalReport:
    """Runs the rehearsal and returns its report. Hours of virtual time take seconds.

    Must not be called from a running event loop, because it runs its own. Use `rehearse_in_subprocess` there.
    """
    return build_report(rehearsal, run_rehearsal(rehearsal, on_progress))


_DEFAULT_TIMEOUT_MS = 8_000


class RehearsalResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Output of the subprocess: a report, or the field of the rehearsal that is invalid and its problem."""

    report: RehearsalReport | None = None
    field: str = ""
    problem: str = ""


async def rehearse_in_subprocess(
    rehearsal: Rehearsal, *, within_ms: int = _DEFAULT_TIMEOUT_MS
) -> RehearsalReport:
    """Runs the rehearsal in a subprocess and returns its report.

    Raises `ConfigError` if the rehearsal is invalid or takes longer than `within_ms`, and `HomingError` if
    the subprocess fails.
    """
    result = await _run_subprocess(msgspec.json.encode(rehearsal, enc_hook=_reject_function), within_ms)
    if result.report is None:
        raise ConfigError(result.field, result.problem)
    return result.report


async def _run_subprocess(rehearsal: bytes, within_ms: int) -> RehearsalResult:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "homing.rehearsal.rehearse"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(within_ms / 1000):
            output, _ = await process.communicate(rehearsal)
    except TimeoutError:
        problem = f"the rehearsal takes longer than {within_ms} ms; use fewer notifications or less traffic"
        raise ConfigError("notifications", problem) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise HomingError(f"the rehearsal's subprocess failed with exit code {process.returncode}")
    return msgspec.json.decode(output, type=RehearsalResult)


def _reject_function(value: Any) -> Any:
    raise ConfigError("call", "is a function, which the API cannot rehearse; use `homing policy simulate`")


def main() -> None:
    """Runs in the subprocess: reads a rehearsal from stdin and writes a `RehearsalResult` to stdout.

    The subprocess has a lower CPU priority than the processes that send.
    """
    os.nice(10)
    try:
        result = RehearsalResult(
            report=rehearse(msgspec.json.decode(sys.stdin.buffer.read(), type=Rehearsal))
        )
    except (ConfigError, InvalidRequest) as error:
        result = RehearsalResult(field=error.field, problem=str(error).removeprefix(f"{error.field}: "))
    sys.stdout.buffer.write(msgspec.json.encode(result))


if __name__ == "__main__":
    main()
