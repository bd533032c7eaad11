"""What `homing bench` and the scripts in bench/ measure with: a sink, stores, worker processes, loads.

Nothing in here is part of the product, but everything that it measures is: the engine as `Homing` wires it,
the webhook provider over real sockets, a real store. A figure whose books do not balance is not reported.
"""

from __future__ import annotations


class Unsound(Exception):
    """Something was lost, repeated or is not accounted for: the figure would mean nothing."""
