"""Runs the real command line as a process, and prepares stores for it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from homing import Homing, Listed, Outcome, OutcomeKind, PolicyPatch, Rule
from homing.core.notifications import Channel
from homing.core.ports.providers import Delivery
from homing.core.retry.policy import Jitter, OnTimeout
from support.preloaded_cli import preloaded_command

SETTINGS = """\
store = "homing.db"
[providers.pigeon]
kind = "file"
path = "pigeon.jsonl"
[providers.hawk]
kind = "file"
path = "hawk.jsonl"
"""
"""Two providers that always succeed and write to their files."""

_TIMEOUT_S = 240


class CommandResult:
    """The output and exit code of one command."""

    def __init__(self, code: int, out: str, err: str, argv: Sequence[str]) -> None:
        self.code, self.out, self.err, self.argv = code, out, err, argv
        assert "Traceback" not in err, self
        assert "\x1b" not in out + err, "a pipe gets no escape sequences"

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.out)

    def __repr__(self) -> str:
        return f"homing {' '.join(self.argv)}\n→ {self.code}\n{self.out}\n{self.err}"


class Cli:
    """Runs `homing` in one folder, without the caller's HOMING_* variables.

    A command that keeps running is started afresh, each other one from a process that has imported Homing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *argv: str, stdin: bytes | None = None, **env: str) -> CommandResult:
        done = subprocess.run(
            self.short_command(*argv),
            input=stdin if stdin is not None else b"",
            capture_output=True,
            timeout=_TIMEOUT_S,
            cwd=self.folder,
            env=self.env(**env),
        )
        return CommandResult(done.returncode, done.stdout.decode(), done.stderr.decode(), argv)

    def ok(self, *argv: str, stdin: bytes | None = None, **env: str) -> CommandResult:
        """Runs a command that must succeed."""
        result = self(*argv, stdin=stdin, **env)
        assert result.code == 0, result
        return result

    def many(self, *argvs: Sequence[str], **env: str) -> list[CommandResult]:
        """Runs several commands one after another."""
        return [self(*argv, stdin=None, **env) for argv in argvs]

    def start(self, *argv: str, **env: str) -> subprocess.Popen[str]:
        """Starts a command that keeps running."""
        return subprocess.Popen(
            self.command(*argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=self.env(**env),
        )

    def short_command(self, *argv: str) -> list[str]:
        """Returns the program of a command that soon ends."""
        return preloaded_command(*argv)

    def command(self, *argv: str) -> list[str]:
        return [sys.executable, "-m", "homing.cli", *argv]

    def env(self, **more: str) -> dict[str, str]:
        dropped = ("HOMING_", "DATABASE_URL", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        return {**kept, "TZ": "UTC", **more}


class MoodyProvider:
    """A provider whose outcome depends on the address, and that can be made to fail."""

    def __init__(self) -> None:
        self.calls = 0

    async def send(self, delivery: Delivery) -> Outcome:
        self.calls += 1
        name = delivery.address.partition("@")[0]
        if name.startswith("tired") or (name.startswith("flaky") and delivery.attempt == 1):
            return Outcome(OutcomeKind.TRANSIENT, error_code="503", error=f"busy, {delivery.address} waits")
        if name.startswith("nobody"):
            error = f"no such mailbox: {delivery.address}"
            return Outcome(OutcomeKind.BAD_RECIPIENT, error_code="550", error=error)
        if name.startswith("silent"):
            return Outcome(OutcomeKind.AMBIGUOUS, error_code="timeout", error="no answer")
        return Outcome(OutcomeKind.ACCEPTED, provider_message_id=f"m-{self.calls}")

    async def check(self) -> bool:
        return True

    async def close(self) -> None:
        """Has nothing to close."""


Ids = dict[str, str]


def history(folder: Path) -> Ids:
    """Fills a store with one notification of every status, and returns their ids by status."""
    return asyncio.run(_history(folder))


async def _history(folder: Path) -> Ids:
    rules = [
        Rule(name="quick", policy=PolicyPatch(max_attempts=2, base_ms=0, cap_ms=0)),
        Rule(
            name="slow",
            type="slow",
            policy=PolicyPatch(max_attempts=5, base_ms=600_000, cap_ms=0, jitter=Jitter.NONE),
        ),
        Rule(name="hold", type="hold", policy=PolicyPatch(on_timeout=OnTimeout.HOLD)),
    ]
    pigeon = Listed(id="pigeon", provider=MoodyProvider(), channels=(Channel.EMAIL,))
    ids: Ids = {}
    async with Homing(
        folder / "homing.db",
        config_file=_empty(folder),
        providers={"pigeon": pigeon},
        rules=rules,
        sinks={"log": {}},
    ) as homing:

        async def send(name: str, to: str, type: str = "order") -> None:
            result = await homing.send(
                f"{to}@example.org", channel="email", type=type, subject="Hi", body="Hello", metadata={"n": 1}
            )
            ids[name] = result.id

        for number in range(3):
            await send(f"sent{number}", f"ada{number}")
        await send("recovered", "flaky")
        await send("bad1", "nobody1")
        await send("bad2", "nobody2")
        await send("exhausted", "tired")
        await send("doubt", "silent", "hold")
        await homing.process(100)
        await homing.process(100)
        await send("waiting", "tired9", "slow")
        await homing.process(100)
        await send("pending", "later")
    return ids


def _empty(folder: Path) -> Path:
    file = folder / "empty.toml"
    file.write_text("")
    return file
