"""Selects the first provider of a new notification on a weighted route. The same id gives the same result.

Each provider gets a score from a hash of (id, provider), and the best score wins (weighted rendezvous
hashing). So the split needs no shared counter and no randomness. If one provider drops out, only its own
notifications move to others.
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
    """Returns the provider with the best score for this id, or the route's first if it has no weights.

    A provider that is not usable now is selected only if none is. A provider with weight 0 is used only for
    failover.
    """
    candidates = [stop for stop in route if weights.get(stop.provider, 0) > 0]
    if not candidates:
        return route[0]
    able = [stop for stop in candidates if usable(stop.provider)]
    return max(able or candidates, key=lambda stop: _score(id, stop.provider) / weights[stop.provider])


def _score(id: str, provider: str) -> float:
    """Returns the logarithm of a number in (0, 1). It is never positive; the closer to 0, the better."""
    hashed = blake2b(f"{id}\x00{provider}".encode(), digest_size=8).digest()
    return log((int.from_bytes(hashed) + 0.5) / _HASHES)
