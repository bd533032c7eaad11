"""`homing init`: writes a commented settings file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from homing.cli.common.exit_codes import CliError
from homing.cli.common.options import Options, command
from homing.cli.root import app


@command(app, "init")
def init(
    options: Options,
    path: Annotated[Path, typer.Argument(metavar="[FILE]", help="File or folder to write to.")] = Path(
        "homing.toml"
    ),
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a commented homing.toml with every default."""
    from homing.settings import CONFIG_FILE, default_settings_text

    if path.is_dir():
        path = path / CONFIG_FILE
    if path.exists() and not force:
        raise CliError(f"{path}: already exists; overwrite it with --force")
    try:
        path.write_text(default_settings_text(), encoding="utf-8")
    except OSError as error:
        raise CliError(f"{path}: cannot be written: {error.strerror}") from None
    screen = options.screen
    screen.line(f"Wrote {path}. It lists every default: keep the lines you change, delete the rest.")
    screen.line("Next: homing send --to you@example.org --channel email --subject Hi --body Hello")
    screen.line("      homing process")
