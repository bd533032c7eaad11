"""The `homing` command line. `docs/reference/cli.md` describes every command."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the console script `homing` and exits with its code."""
    try:
        from homing.cli.app import run
    except ModuleNotFoundError as error:
        sys.exit(f"error: the command line needs {error.name}; install it with: pip install 'homing[cli]'")
    sys.exit(run(sys.argv[1:]))
