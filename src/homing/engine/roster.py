"""The providers that are wired in, and the route of each channel over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from msgspec import Struct

from homing.core.breaker import BreakerPolicy, default_policy
from homing.core.errors import ConfigError, InvalidRequest
from homing.core.failover import Route, Stop
from homing.core.limits import RateLimit
from homing.core.model import Channel
from homing.core.ports import Provider
from homing.core.split import HEAVIEST, first_stop


class Listed(Struct, frozen=True, kw_only=True):
    """One provider with its settings."""

    id: str
    provider: Provider
    kind: str = ""
    """As the settings name it; empty for one that was given from Python."""
    channels: tuple[Channel, ...]
    max_in_flight: int = 128
    rate: RateLimit | None = None
    breaker: BreakerPolicy | None = None
    host_slots: int | None = None
    """Set for webhooks: in-flight sends to one host."""
    weight: int | None = None
    """Its share of what is sent first to it, against the others of a route; 0: only to fail over to."""

    @property
    def breaker_policy(self) -> BreakerPolicy:
        return self.breaker or default_policy(self.channels[0])


class Closes(Protocol):
    """What providers share, and what is closed after them."""

    async def close(self) -> None: ...


class Roster:
    """Providers by id, and routes by channel in the order in which they were listed or configured."""

    def __init__(
        self,
        providers: Iterable[Listed],
        routes: Mapping[Channel, Sequence[str]] | None = None,
        shared: Closes | None = None,
    ) -> None:
        self._shared = shared
        self._listed: dict[str, Listed] = {}
        for listed in providers:
            _check(listed)
            if listed.id in self._listed:
                raise ConfigError(f"providers.{listed.id}", "appears twice; provider ids must differ")
            self._listed[listed.id] = listed
        self._routes = {channel: self._route(channel, (routes or {}).get(channel)) for channel in Channel}
        self._weights = {channel: self._split(channel) for channel in Channel}

    def __iter__(self) -> Iterator[Listed]:
        return iter(self._listed.values())

    def __contains__(self, provider: str) -> bool:
        return provider in self._listed

    def __getitem__(self, provider: str) -> Listed:
        return self._listed[provider]

    def get(self, provider: str) -> Listed | None:
        return self._listed.get(provider)

    async def close(self) -> None:
        """Closes the providers, then what they share. One that fails at it does not keep the others open."""
        for one in (*(listed.provider for listed in self), self._shared):
            if one is not None:
                with suppress(Exception):
                    await one.close()

    def route(self, channel: Channel) -> Route:
        return self._routes[channel]

    @property
    def channels(self) -> tuple[Channel, ...]:
        """Those that have at least one provider."""
        return tuple(channel for channel, route in self._routes.items() if route)

    def weights(self, channel: Channel) -> Mapping[str, int]:
        """Provider → its share of what goes over this channel's route; empty where all goes to the first."""
        return self._weights[channel]

    def first_stop(
        self,
        channel: Channel,
        forced: str | None,
        id: str = "",
        usable: Callable[[str], bool] = lambda _: True,
    ) -> Stop:
        """Where a new notification goes first; a clear error where it cannot go anywhere."""
        route = self._routes[channel]
        if not route:
            able = ", ".join(c.value for c in self.channels) or "none yet"
            raise InvalidRequest("channel", f"{channel} has no provider; configured are {able}")
        if forced is None:
            weights = self._weights[channel]
            return first_stop(route, weights, id, usable) if weights else route[0]
        for stop in route:
            if stop.provider == forced:
                return stop
        known = ", ".join(stop.provider for stop in route)
        raise InvalidRequest("provider", f"{forced!r} does not serve {channel}; allowed are {known}")

    def _route(self, channel: Channel, order: Sequence[str] | None) -> Route:
        able = [listed.id for listed in self._listed.values() if channel in listed.channels]
        for name in order or ():
            if list(order or ()).count(name) > 1:
                raise ConfigError(f"routes.{channel}", f"names {name!r} twice; each provider comes once")
            if name not in able:
                raise ConfigError(
                    f"routes.{channel}",
                    f"names {name!r}, which does not serve it; allowed are {', '.join(able)}",
                )
        return tuple(Stop(name, self._listed[name].host_slots is not None) for name in (order or able))

    def _split(self, channel: Channel) -> dict[str, int]:
        """The weights of a route: all of its providers have one, or none has."""
        route = self._routes[channel]
        given = {stop.provider: self._listed[stop.provider].weight for stop in route}
        weights = {provider: weight for provider, weight in given.items() if weight is not None}
        if len(route) < 2 or not weights:
            return {}
        for provider in given.keys() - weights.keys():
            raise ConfigError(
                f"providers.{provider}.weight",
                f"is missing; {channel} is split by weight, so each of its providers needs one "
                "(0: only to fail over to)",
            )
        if not any(weights.values()):
            raise ConfigError(
                f"providers.{route[0].provider}.weight",
                f"is 0, like all weights of {channel}; at least one must be more",
            )
        return weights


def _check(listed: Listed) -> None:
    if listed.max_in_flight < 1:
        raise ConfigError(
            f"providers.{listed.id}.max_in_flight", f"is {listed.max_in_flight}; it must be at least 1"
        )
    if listed.weight is not None and not 0 <= listed.weight <= HEAVIEST:
        raise ConfigError(f"providers.{listed.id}.weight", f"is {listed.weight}; allowed are 0 to {HEAVIEST}")
    if not listed.channels:
        raise ConfigError(f"providers.{listed.id}.channels", "is empty; name at least one channel")
