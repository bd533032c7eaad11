"""The command line: `homing --help` lists what it can do, `docs/reference/cli.md` shows it."""

from __future__ import annotations

import sys


def main() -> None:
    """The console script."""
    try:
        from homing.cli.app import run
    except ModuleNotFoundError as error:
        sys.exit(f"error: the command line needs {error.name}; install it with: pip install 'homing[cli]'")
    sys.exit(run(sys.argv[1:]))
