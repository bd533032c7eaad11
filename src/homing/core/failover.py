"""Which provider the next attempt goes to. Pure: breaker states come in as a question."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from urllib.parse import urlsplit

from msgspec import Struct


class Stop(Struct, frozen=True):
    """One provider on a channel's route."""

    provider: str
    per_host: bool = False
    """Each target host has slots of its own (webhooks): one slow endpoint does not hold the others."""

    def outlet(self, address: str) -> str:
        """What has capacity of its own for this address."""
        if not self.per_host:
            return self.provider
        path = address.find("/", 8)  # after http:// or https://
        return _outlet(self.provider, address if path < 0 else address[:path])


_ORIGIN = re.compile(r"[^:/?#]*://[^/?#]*")


@lru_cache(4_096)
def _outlet(provider: str, url: str) -> str:
    """`provider@host`, with its port, in lower case."""
    origin = _ORIGIN.match(url)
    try:
        host = urlsplit(origin[0] if origin else url).netloc.rpartition("@")[2].lower()
    except ValueError:  # not a URL: intake refuses it, but a stored one must not stop the worker
        host = ""
    return f"{provider}@{host}"


Route = tuple[Stop, ...]
"""A channel's providers, in the order in which they are tried."""


REFUSAL_MS = 10 * 365 * 24 * 3_600_000
"""Length of the hold on a provider that refused a notification with an unlisted error: it is not asked again.

No other hold comes near it: a `Retry-After` counts for one day, a backoff for seven.
"""


class Choice(Struct, frozen=True):
    """The provider for an attempt, or why there is none now."""

    stop: Stop | None
    wait_ms: int | None = None
    """Set when a provider is usable but asked to be left alone: try again then."""


def rotation(route: Route, start: str) -> Route:
    """The route from `start` on, then from its beginning; a start that is not on it changes nothing."""
    for index, stop in enumerate(route):
        if stop.provider == start:
            return route[index:] + route[:index]
    return route


def next_stop(route: Route, provider: str) -> Stop | None:
    """The stop after `provider`, after the last one again the first. None: there is no other."""
    return next((stop for stop in rotation(route, provider) if stop.provider != provider), None)


def has_refused(holds: Mapping[str, int], provider: str, now: int) -> bool:
    """Returns whether a provider has refused the notification with an unlisted error."""
    return holds.get(provider, 0) - now > REFUSAL_MS // 2


def choose(
    route: Route,
    start: str,
    *,
    pinned: bool,
    usable: Callable[[str], bool],
    holds: Mapping[str, int],
    now: int,
) -> Choice:
    """The first provider from `start` on that is usable and not on hold."""
    turned = tuple(stop for stop in route if stop.provider == start) if pinned else rotation(route, start)
    waits: list[int] = []
    for stop in turned:
        if not usable(stop.provider):
            continue
        wait_ms = holds.get(stop.provider, 0) - now
        if wait_ms <= 0:
            return Choice(stop)
        waits.append(wait_ms)
    return Choice(None, min(waits, default=None))
