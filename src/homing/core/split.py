"""Which provider of a weighted route a new notification goes to first. Pure, and the same for the same id.

Each provider draws its lot from a hash of (id, provider), and the best lot wins (weighted rendezvous). So the
split needs no shared counter and no randomness, and when one provider drops out, only those that would have
gone to it go elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b
from math import log

from homing.core.failover import Route, Stop

HEAVIEST = 1_000_000

_HASHES = 2.0**64


def first_stop(
    route: Route, weights: Mapping[str, int], id: str, usable: Callable[[str], bool] = lambda _: True
) -> Stop:
    """The first of the route, or, where it has weights, the one that is drawn for this id.

    One that is not usable now is drawn only if none is; one of weight 0 never (it is there to fail over to).
    """
    drawn_from = [stop for stop in route if weights.get(stop.provider, 0) > 0]
    if not drawn_from:
        return route[0]
    able = [stop for stop in drawn_from if usable(stop.provider)]
    return max(able or drawn_from, key=lambda stop: _lot(id, stop.provider) / weights[stop.provider])


def _lot(id: str, provider: str) -> float:
    """The logarithm of a number in (0, 1): never positive, the closer to 0 the better."""
    hashed = blake2b(f"{id}\x00{provider}".encode(), digest_size=8).digest()
    return log((int.from_bytes(hashed) + 0.5) / _HASHES)
