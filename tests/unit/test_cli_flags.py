"""Tests of the flags of the `homing` command: each is defined once, and a command gets whole groups."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, get_args

import pytest
import typer

from homing.cli import app, root
from homing.cli.common.flag_groups import FlagGroup, LeaveOut
from homing.cli.common.options import Json, Options, command, redact_store_url


def flags_of(group: typer.Typer, path: str) -> Iterator[tuple[str, inspect.Parameter]]:
    for one in group.registered_commands:
        assert one.callback is not None
        for parameter in inspect.signature(one.callback).parameters.values():
            yield f"{path} {one.name}", parameter
    for sub in group.registered_groups:
        assert sub.typer_instance is not None
        yield from flags_of(sub.typer_instance, f"{path} {sub.name}")


def test_no_two_commands_define_the_same_flag() -> None:
    for name in app._COMMANDS:
        import_module(f"homing.cli.{name}")
    places: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)
    for path, parameter in flags_of(root.app, "homing"):
        for flag in get_args(parameter.annotation)[1:]:
            places[parameter.name, flag.help].setdefault(id(flag), path)
    assert len(places) > 100, "the flags were found"
    assert {flag: list(defined.values()) for flag, defined in places.items() if len(defined) > 1} == {}


Size = Annotated[int, typer.Option("--size", help="The size.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeFlags(FlagGroup):
    """A group of flags."""

    size: Size = 1
    round_: Annotated[bool, typer.Option("--round", help="Round.")] = False
    colour: Annotated[str, typer.Option("--colour", help="Colour.")] = "red"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawFlags(FlagGroup):
    """A group that contains another one, without one of its flags."""

    pen: Annotated[str, typer.Option("--pen", help="Pen.")] = "thin"
    shape: Annotated[ShapeFlags, LeaveOut("colour")]


@pytest.fixture
def draw() -> tuple[Any, list[tuple[Options, DrawFlags, bool]]]:
    """Returns the command `draw`, and a list of the calls of its function."""
    calls: list[tuple[Options, DrawFlags, bool]] = []
    group = typer.Typer(rich_markup_mode=None, add_completion=False)

    @command(group, "draw")
    def run(options: Options, flags: DrawFlags, json: Json = False) -> None:
        """Draws a shape."""
        calls.append((options, flags, json))

    return typer.main.get_command(group), calls


def test_a_command_gets_the_flags_of_nested_groups_as_objects(
    draw: tuple[Any, list[tuple[Options, DrawFlags, bool]]],
) -> None:
    drawing, calls = draw
    drawing.main(["--size", "3", "--pen", "thick", "--tenant", "acme", "--json"], standalone_mode=False)
    drawing.main([], standalone_mode=False)
    assert calls == [
        (Options(tenant="acme"), DrawFlags(pen="thick", shape=ShapeFlags(size=3)), True),
        (Options(), DrawFlags(shape=ShapeFlags()), False),
    ]


def test_the_help_has_the_flags_in_the_order_of_the_groups_and_none_that_is_left_out(
    draw: tuple[Any, list[tuple[Options, DrawFlags, bool]]],
) -> None:
    drawing, _ = draw
    names = [flag for parameter in drawing.params for flag in parameter.opts]
    shared = ["--config", "--store", "--tenant", "--no-color", "--show-recipients"]
    assert names == ["--pen", "--size", "--round", "--json", *shared]
    assert drawing.help == "Draws a shape."


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:s3@db:5432/app",
        "postgresql://ada:s3?@db:5432/app",
        "postgresql://ada:s3@db:5432/app?pool_size=3&listen_url=postgresql://ada:s3@direct/app",
        "postgresql://db:5432/app?listen_url=postgresql://ada:s3@direct/app",
    ],
)
def test_a_store_is_shown_without_its_secrets(url: str) -> None:
    assert redact_store_url(url) == "postgresql://db:5432/app"
