"""Benchmarks: the parts of `homing bench`, also used by the scripts in bench/.

A run takes store addresses and a plan, and returns a report. It measures the real product: the engine as
`Homing` builds it, the webhook provider over real sockets, and a real store. Each round then checks that
every notification is accounted for; if not, no figure is reported. Inside the package, only the command line
imports this folder.
"""

from __future__ import annotations


class InvalidMeasurement(Exception):
    """Raised if a figure would be invalid: something was lost, repeated or rejected, or a process failed."""
