"""Tests of what the `homing` command loads before it runs a command."""

from __future__ import annotations

import subprocess
import sys

_LOAD_COMMANDS = """
import sys
from importlib import import_module
import typer
from homing.cli import app
for name in app._COMMANDS:
    import_module(f"homing.cli.{name}")
print(*typer.main.get_command(app.app).commands)
print(*sorted(name for name in sys.modules if name.startswith("homing.")))
"""


def loaded() -> tuple[list[str], list[str]]:
    """Returns the names of the commands, and the modules of Homing that a new interpreter loads for them."""
    done = subprocess.run([sys.executable, "-c", _LOAD_COMMANDS], check=True, capture_output=True, text=True)
    commands, modules = done.stdout.splitlines()
    return commands.split(), modules.split()


def test_the_commands_do_not_load_the_engine_before_they_run() -> None:
    _, modules = loaded()
    assert "homing.cli.operations.dead" in modules
    heavy = ("homing.engine", "homing.library", "homing.stores", "homing.providers", "homing.rehearsal")
    assert [name for name in modules if name.startswith(heavy)] == []


def test_the_help_lists_commands_in_a_useful_order() -> None:
    commands, _ = loaded()
    assert commands[:6] == ["init", "demo", "send", "process", "worker", "serve"]
    assert commands[-11:-6] == ["dead", "jobs", "providers", "sinks", "policy"]
    assert commands[-6:] == ["templates", "settings", "keys", "tenants", "audit", "db"]
