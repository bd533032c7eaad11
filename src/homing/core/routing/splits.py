"""Overrides of a channel's split: for a time, an operator's shares replace the weights of the settings. Pure.

The first provider of a notification follows from its id, and the id contains the time of acceptance. So each
notification keeps the split that was in force then, and an override that has ended stays on record for those
that were accepted under it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from homing.core.errors import InvalidRequest
from homing.core.notifications import Channel
from homing.core.routing.failover import MAX_WEIGHT
from homing.core.send_request import find_provider_id
from homing.core.times import moment

MAX_OVERRIDE_MS = 30 * 24 * 3_600_000
"""Longest time that an override can hold."""

_REMEMBER_MS = 60 * 24 * 3_600_000
"""How long an override stays on record after its end."""

_REMEMBER = 50
"""Maximum number of overrides on record per channel."""


class SplitOverride(Struct, frozen=True, kw_only=True):
    """A stored override of one channel's split."""

    shares: dict[str, int]
    """Provider → its share of first attempts, relative to the other shares. 0 means failover only."""
    by: str
    why: str
    since: int
    until: int


class SplitOverrideView(Struct, frozen=True, kw_only=True, rename="camel"):
    """An override of a channel's split, which ends by itself."""

    shares: Mapping[str, int]
    """Provider → its share of first attempts, relative to the other shares. 0 means failover only."""
    by: str
    """Operator who set it."""
    why: str
    since: datetime
    until: datetime

    def describe(self) -> str:
        """Returns the shares, who set them, until when and why, in one phrase."""
        until = self.until.isoformat(timespec="seconds")
        return f"{describe_shares(self.shares)} until {until}, by {self.by}: {self.why}"


class SplitView(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """How the first attempts of a channel are split between its providers."""

    channel: Channel
    providers: tuple[str, ...]
    """The providers on the channel's route, in order."""
    shares: Mapping[str, float]
    """Provider → its share of first attempts now, in per cent. 0 means failover only."""
    weights: Mapping[str, int] = field(default_factory=dict)
    """Provider → its weight in the settings. Omitted if the first provider of the route gets all."""
    override: SplitOverrideView | None = None
    """The override in force. Omitted if the settings decide."""


def split_at(overrides: Sequence[SplitOverride], at: int) -> SplitOverride | None:
    """Returns the override that was in force at a time, or None if the settings decided then.

    `overrides` are newest first. A newer one ends those before it.
    """
    for one in overrides:
        if one.since <= at:
            return one if at < one.until else None
    return None


def add_override(
    overrides: Iterable[SplitOverride], new: SplitOverride, now: int
) -> tuple[SplitOverride, ...]:
    """Returns the overrides with a new one that ends the others, and without those that ended long ago."""
    return (new, *_ended(overrides, now))[:_REMEMBER]


def end_override(overrides: Sequence[SplitOverride], now: int) -> tuple[SplitOverride, ...] | None:
    """Returns the overrides with the one in force ended, or None if there is none in force."""
    return None if split_at(overrides, now) is None else _ended(overrides, now)[:_REMEMBER]


def _ended(overrides: Iterable[SplitOverride], now: int) -> tuple[SplitOverride, ...]:
    kept = (one for one in overrides if one.until > now - _REMEMBER_MS)
    return tuple(replace(one, until=min(one.until, now)) for one in kept)


def check_shares(shares: Mapping[str, Any], channel: Channel, route: Sequence[str]) -> dict[str, int]:
    """Returns a share for each provider of the route, 0 for one that is not given.

    Providers may be given by an alias. Raises `InvalidRequest` if the shares cannot split the route.
    """
    if len(route) < 2:
        raise InvalidRequest(
            "channel", f"{channel} has {len(route)} provider{'s' * (len(route) != 1)}; a split needs two"
        )
    found = dict.fromkeys(route, 0)
    for name, share in shares.items():
        provider = find_provider_id(name, found)
        if provider not in found:
            known = ", ".join(route)
            raise InvalidRequest(
                "shares", f"contains {name!r}, which is not on the route of {channel}: {known}"
            )
        if isinstance(share, bool) or not isinstance(share, int) or not 0 <= share <= MAX_WEIGHT:
            raise InvalidRequest(
                "shares", f"gives {name} {share!r}; a share is a whole number from 0 to {MAX_WEIGHT}"
            )
        found[provider] = share
    if not any(found.values()):
        raise InvalidRequest("shares", "are all 0; at least one must be greater")
    return found


def in_per_cent(weights: Mapping[str, int], route: Sequence[str]) -> dict[str, float]:
    """Returns each provider's share of first attempts. Without weights, the first of the route gets all."""
    total = sum(weights.get(name, 0) for name in route)
    if not total:
        return {name: 100.0 if name == route[0] else 0.0 for name in route}
    return {name: round(100.0 * weights.get(name, 0) / total, 1) for name in route}


def describe_shares(shares: Mapping[str, int]) -> str:
    """Returns the shares as `a 80, b 20`."""
    return ", ".join(f"{provider} {share}" for provider, share in shares.items())


def override_view(override: SplitOverride) -> SplitOverrideView:
    """Returns the public view of an override."""
    return SplitOverrideView(
        shares=override.shares,
        by=override.by,
        why=override.why,
        since=moment(override.since),
        until=moment(override.until),
    )
