"""Runs a rehearsal in a subprocess, so that it does not block the caller and can be aborted.

`python -m homing.sim.apart` reads a rehearsal as JSON from stdin and writes the result as JSON to stdout.
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
from homing.sim.rehearsal import rehearse

_DEFAULT_TIMEOUT_MS = 8_000


class Told(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Output of the subprocess: a report, or the field of the rehearsal that is invalid and its problem."""

    report: RehearsalReport | None = None
    field: str = ""
    problem: str = ""


async def rehearse_apart(rehearsal: Rehearsal, *, within_ms: int = _DEFAULT_TIMEOUT_MS) -> RehearsalReport:
    """Runs the rehearsal in a subprocess and returns its report.

    Raises `ConfigError` if the rehearsal is invalid or takes longer than `within_ms`.
    """
    result = await _run_subprocess(msgspec.json.encode(rehearsal, enc_hook=_reject_function), within_ms)
    if result.report is None:
        raise ConfigError(result.field, result.problem)
    return result.report


async def _run_subprocess(rehearsal: bytes, within_ms: int) -> Told:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "homing.sim.apart"),
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
    return msgspec.json.decode(output, type=Told)


def _reject_function(value: Any) -> Any:
    raise ConfigError("call", "is a function, which the API cannot rehearse; use `homing policy simulate`")


def main() -> None:
    """Runs the subprocess, with a lower CPU priority than the processes that send."""
    os.nice(10)
    try:
        result = Told(report=rehearse(msgspec.json.decode(sys.stdin.buffer.read(), type=Rehearsal)))
    except (ConfigError, InvalidRequest) as error:
        result = Told(field=error.field, problem=str(error).removeprefix(f"{error.field}: "))
    sys.stdout.buffer.write(msgspec.json.encode(result))


if __name__ == "__main__":
    main()
