"""The typer application that commands register with, and its global options."""

from __future__ import annotations

import inspect
import sys
from typing import Annotated

import typer

from homing.cli.common.flag_groups import with_flags
from homing.cli.common.options import Options

app = typer.Typer(
    name="homing",
    help="Homing delivers notifications and keeps trying until they land.",
    epilog=(
        "The options above may also follow the command. "
        "Exit codes: 0 success, 1 negative result, 2 bad input, 3 not found, 4 store error, 5 partly done."
    ),
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(wanted: bool) -> None:
    if wanted:
        from homing import __version__

        sys.stdout.write(f"homing {__version__}\n")
        raise typer.Exit


def _globals(
    ctx: typer.Context,
    options: Options,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Print the version.")
    ] = False,
) -> None:
    ctx.obj = options
    if ctx.invoked_subcommand is None:
        sys.stdout.write(ctx.get_help() + "\n")
        raise typer.Exit


_, *_flags = inspect.signature(_globals, eval_str=True).parameters.values()
app.callback(invoke_without_command=True)(with_flags(_globals, _flags))


def add_command_group(name: str, help: str) -> typer.Typer:
    """Adds a command with subcommands to the application and returns it."""
    made = typer.Typer(help=help, no_args_is_help=True, rich_markup_mode=None)
    app.add_typer(made, name=name)
    return made
