"""Tests of `--help` on a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
import typer

from homing.cli import app, root


def pages(command: Any, name: str, parent: Any = None) -> Iterator[tuple[str, str]]:
    """Yields the name and the help of a command and of all commands below it."""
    context = command.make_context(name, [], parent, resilient_parsing=True)
    yield context.command_path, command.get_help(context)
    for below, sub in getattr(command, "commands", {}).items():
        yield from pages(sub, below, context)


@pytest.fixture(scope="module")
def helps() -> dict[str, str]:
    for name in app._COMMANDS:
        import_module(f"homing.cli.{name}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        return dict(pages(typer.main.get_command(root.app), "homing"))


def test_every_page_fits(helps: dict[str, str]) -> None:
    assert len(helps) > 50, "the pages were found"
    assert [line for page in helps.values() for line in page.splitlines() if len(line) > 80] == []


def test_no_summary_is_cut_off(helps: dict[str, str]) -> None:
    listed = [line for page in helps.values() for line in page.partition("\nCommands:\n")[2].splitlines()]
    assert len(listed) > 50, "the lists of commands were found"
    assert [line for line in listed if line.endswith("...")] == []


def test_the_usage_names_arguments_as_their_descriptions_do(helps: dict[str, str]) -> None:
    usages = {path: page.splitlines()[0] for path, page in helps.items()}
    assert usages["homing status"] == "Usage: homing status [OPTIONS] ID"
    assert usages["homing resolve"] == "Usage: homing resolve [OPTIONS] ID {sent|failed}"
    assert usages["homing init"] == "Usage: homing init [OPTIONS] [FILE]"
    assert usages["homing dead ack"] == "Usage: homing dead ack [OPTIONS] [ID]..."


def test_the_environment_variable_of_the_settings_file_is_on_the_line_of_its_flag(
    helps: dict[str, str],
) -> None:
    line = "  --config FILE      Settings file; default: $HOMING_CONFIG, or homing.toml."
    assert line in helps["homing status"].splitlines()
