"""A rehearsal in a process of its own: it takes none of the caller's time, and can be broken off.

`python -m homing.sim.apart` reads a rehearsal from its input and writes what came out.
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

_LONGEST_MS = 8_000


class Told(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the other process says: a report, or what is wrong with the rehearsal."""

    report: RehearsalReport | None = None
    field: str = ""
    problem: str = ""


async def rehearse_apart(rehearsal: Rehearsal, *, within_ms: int = _LONGEST_MS) -> RehearsalReport:
    """The report, or `ConfigError` where the rehearsal does not fit together or takes too long."""
    told = await _told(msgspec.json.encode(rehearsal, enc_hook=_no_functions), within_ms)
    if told.report is None:
        raise ConfigError(told.field, told.problem)
    return told.report


async def _told(asked: bytes, within_ms: int) -> Told:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "homing.sim.apart"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(within_ms / 1000):
            said, _ = await process.communicate(asked)
    except TimeoutError:
        told = f"is too much: no end within {within_ms} ms; let there be fewer, or less traffic"
        raise ConfigError("notifications", told) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise HomingError(f"the rehearsal's process ended with {process.returncode}")
    return msgspec.json.decode(said, type=Told)


def _no_functions(value: Any) -> Any:
    raise ConfigError("call", "is a function, which cannot be rehearsed apart; use `homing policy simulate`")


def main() -> None:
    """The other process. Whatever else runs on the machine goes first."""
    os.nice(10)
    try:
        told = Told(report=rehearse(msgspec.json.decode(sys.stdin.buffer.read(), type=Rehearsal)))
    except (ConfigError, InvalidRequest) as error:
        told = Told(field=error.field, problem=str(error).removeprefix(f"{error.field}: "))
    sys.stdout.buffer.write(msgspec.json.encode(told))


if __name__ == "__main__":
    main()
