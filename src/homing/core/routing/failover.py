"""Chooses the provider of the first and of each further attempt. Pure: breaker states are passed in."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from enum import IntEnum
from functools import lru_cache
from hashlib import blake2b
from math import log

from msgspec import DecodeError, Struct, ValidationError, json


class RouteStep(Struct, frozen=True):
    """One provider on a channel's route."""

    provider: str
    per_host: bool = False
    """True if the target host is the recipient's. Each has slots and a breaker of its own, so that a slow or
    failing endpoint does not affect the others."""

    def outlet(self, tenant: str, address: str) -> str:
        """Returns the outlet for this address.

        It is `provider@tenant/origin` if `per_host` is set and the address names a host, and otherwise the
        provider. Rows of earlier releases have `provider@host`, which is served in the same way.
        """
        if not self.per_host:
            return self.provider
        path = address.find("/", 8)  # after http:// or https://
        target = address if path < 0 or address.startswith("{") else address[:path]
        return _outlet_of_host(self.provider, tenant, target)


class _PushSubscription(Struct):
    """The part of a browser's push subscription that names the push service."""

    endpoint: str


_decode_subscription = json.Decoder(_PushSubscription).decode

_WEB_ORIGIN = re.compile(r"https?://[^/?#]*", re.IGNORECASE)


@lru_cache(4_096)
def _outlet_of_host(provider: str, tenant: str, address: str) -> str:
    """Returns the outlet for this address of a tenant. All notifications to a host share one text."""
    origin = _origin(address)
    return provider if origin is None else f"{provider}@{tenant}/{origin}"


def _origin(address: str) -> str | None:
    """Returns the scheme, host and port of a URL, or of the endpoint of a push subscription, in lower case.

    Other URLs may have a secret in place of the host, so a hash replaces everything after their scheme.
    Returns None if the address is no URL.
    """
    if address.startswith("{"):
        try:
            address = _decode_subscription(address).endpoint
        except (ValidationError, DecodeError):  # the provider rejects it
            return None
    if found := _WEB_ORIGIN.match(address):
        scheme, _, authority = found[0].partition("://")
        return f"{scheme}://{authority.rpartition('@')[2]}".lower()
    scheme, is_url, rest = address.partition("://")
    if not is_url:
        return None
    return f"{scheme[:32].lower()}:{blake2b(rest.encode(errors='replace'), digest_size=8).hexdigest()}"


def pinned_outlet(provider: str) -> str:
    """Returns the outlet where a pinned notification waits while its provider is stopped.

    The other notifications of the provider go elsewhere meanwhile, so they must be claimed. A pinned one
    cannot, so it is left out of claims until its provider can be used again.
    """
    return f"{provider}@pinned"


Route = tuple[RouteStep, ...]
"""A channel's providers, in the order in which they are tried."""


class Spent(IntEnum):
    """Why a provider is not tried again for a notification. Stored as its number."""

    THIS_ROUND = 1
    """The provider failed. The next round of failover tries it again."""
    REFUSED = 2
    """The provider rejected the notification with an unlisted error. Only an operator's retry clears it."""


class ProviderChoice(Struct, frozen=True):
    """The provider for an attempt, or how long to wait for one."""

    step: RouteStep | None
    """Provider to use. None if no provider can be used now."""
    wait_ms: int | None = None
    """Time until a usable provider's hold ends. Set only if `step` is None and such a provider exists."""
    round_ended: bool = False
    """True if `step` is None because the round has no provider left, so that the next round begins."""


def rotate_route(route: Route, start: str) -> Route:
    """Returns the route rotated so that it starts with `start`, or unchanged if `start` is not on it."""
    for index, step in enumerate(route):
        if step.provider == start:
            return route[index:] + route[:index]
    return route


def put_first(route: Route, provider: str) -> Route:
    """Returns the route with `provider` moved to the front, or unchanged if `provider` is not on it."""
    first = tuple(step for step in route if step.provider == provider)
    return first + tuple(step for step in route if step.provider != provider) if first else route


def next_step(
    route: Route, *, spent: Collection[str], stopped: Collection[str], holds: Mapping[str, int], now: int
) -> RouteStep | None:
    """Returns the first provider of the route that is neither spent nor stopped nor on hold, or None.

    `stopped` contains the providers whose breakers are open.
    """
    for step in route:
        name = step.provider
        if name not in spent and name not in stopped and holds.get(name, 0) <= now:
            return step
    return None


def refused_only(spent: Mapping[str, int]) -> dict[str, int]:
    """Returns what stays spent when a new round of failover begins."""
    return {provider: kind for provider, kind in spent.items() if kind == Spent.REFUSED}


_OLD_REFUSAL_MS = 365 * 24 * 3_600_000


def known_refusals(spent: Mapping[str, int], holds: Mapping[str, int], now: int) -> Mapping[str, int]:
    """Returns `spent` with the refusals that an earlier release has stored as holds of ten years.

    Holds of a `Retry-After` last at most a day.
    """
    refused = {one: Spent.REFUSED for one, until in holds.items() if until - now > _OLD_REFUSAL_MS}
    return {**spent, **refused} if refused else spent


def choose_provider(
    route: Route,
    current: str,
    *,
    pinned: bool,
    usable: Callable[[str], bool],
    holds: Mapping[str, int],
    spent: Mapping[str, int],
    now: int,
) -> ProviderChoice:
    """Returns `current`, or else the first provider of the route, that is usable and neither spent nor held.

    `route` begins where the notification's rounds begin. If `pinned`, only `current` is considered.
    """
    steps = tuple(step for step in route if step.provider == current) if pinned else put_first(route, current)
    waits: list[int] = []
    for step in steps:
        name = step.provider
        if name in spent or not usable(name):
            continue
        wait_ms = holds.get(name, 0) - now
        if wait_ms <= 0:
            return ProviderChoice(step)
        waits.append(wait_ms)
    return ProviderChoice(None, min(waits, default=None), Spent.THIS_ROUND in spent.values())


MAX_WEIGHT = 1_000_000


_HASHES = 2.0**64


def first_step(
    route: Route, weights: Mapping[str, int], id: str, usable: Callable[[str], bool] = lambda _: True
) -> RouteStep:
    """Returns the provider of the first attempt, drawn by weight from a hash of the notification id.

    If no provider has a weight above 0, this is the first one of the route. A provider that is not usable now
    is selected only if no other is. A provider with weight 0 is used only for failover.
    """
    candidates = [step for step in route if weights.get(step.provider, 0) > 0]
    if not candidates:
        return route[0]
    able = [step for step in candidates if usable(step.provider)]
    return max(able or candidates, key=lambda step: _score(id, step.provider) / weights[step.provider])


def _score(id: str, provider: str) -> float:
    """Returns the provider's score for this id, before the weight: the logarithm of a hash scaled to (0, 1).

    A score is negative. The closest to 0 wins.
    """
    hashed = blake2b(f"{id}\x00{provider}".encode(), digest_size=8).digest()
    return log((int.from_bytes(hashed) + 0.5) / _HASHES)
