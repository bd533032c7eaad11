"""The command line: `homing --help` lists what it can do, `docs/reference/cli.md` shows it."""

from __future__ import annotations

import sys


def main() -> None:
    """The console script."""
    from homing.cli.app import run

    sys.exit(run(sys.argv[1:]))
