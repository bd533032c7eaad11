"""Runs the command line with `python -m homing.cli`."""

from homing.cli import main

main()
