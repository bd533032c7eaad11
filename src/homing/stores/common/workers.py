"""Workers as both SQL stores keep them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import json

from homing.core.ports.stores import SeenWorker

_decode_lanes = json.Decoder(dict[str, int]).decode

_decode_providers = json.Decoder(tuple[str, ...]).decode


def decode_worker(record: Sequence[Any]) -> SeenWorker:
    """Returns the worker of a stored record, whose values are in the order of `SeenWorker`'s fields."""
    name, version, lanes, providers, draining, started_at, seen_at = record
    return SeenWorker(
        name=name,
        version=version,
        lanes=_decode_lanes(lanes),
        providers=_decode_providers(providers),
        draining=bool(draining),
        started_at=started_at,
        seen_at=seen_at,
    )
