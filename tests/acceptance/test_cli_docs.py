"""`docs/reference/cli.md` has every command with every flag, and no others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

from homing.cli import app as cli
from homing.cli.exits import ExitCode

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
EVERYWHERE = {"--config", "--store", "--tenant", "--no-color", "--show-recipients", "--help", "-h"}


def _commands(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for name, one in getattr(command, "commands", {}).items():
        full = f"{path} {name}".strip()
        if hasattr(one, "commands"):
            yield from _commands(one, full)
        else:
            yield full, one


def test_every_command_and_flag_is_in_the_reference_and_no_other() -> None:
    for name in cli._COMMANDS:
        import_module(f"homing.cli.{name}")
    known = dict(_commands(typer.main.get_command(cli.app)))
    sections = re.split(r"^### homing ", PAGE, flags=re.M)[1:]
    documented = {section.partition("\n")[0]: section for section in sections}
    assert set(documented) == set(known)
    for name, command in known.items():
        flags = {
            flag for p in command.params for flag in (*p.opts, *p.secondary_opts) if flag.startswith("-")
        }
        rows = [line for line in documented[name].splitlines() if line.startswith("| `")]
        told = {flag for row in rows for flag in re.findall(r"`(--?[a-z][\w-]*)", row.partition(" | ")[0])}
        assert told == flags - EVERYWHERE, name


def test_every_exit_code_is_in_the_reference() -> None:
    told = {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, flags=re.M)}
    assert told == {int(code) for code in ExitCode}
