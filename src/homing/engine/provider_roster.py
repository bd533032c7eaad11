"""The configured providers, and the route of each channel."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from homing.core.errors import ConfigError, InvalidRequest
from homing.core.ids import id_time_ms
from homing.core.notifications import Channel
from homing.core.ports.providers import Delivery, Provider, SupportsBatchSend, SupportsLookup
from homing.core.ports.runtime import BlockingCalls, is_async
from homing.core.routing.breaker import BreakerPolicy, default_policy
from homing.core.routing.failover import MAX_WEIGHT, Route, RouteStep, first_step, rotate_route
from homing.core.routing.rate_limits import RateLimit
from homing.core.routing.splits import SplitOverride, split_at
from homing.core.send_request import find_provider_id
from homing.engine.plug_in_calls import call_within

_CLOSE_TIMEOUT_MS, _CLOSE_THREADS_MS = 10_000, 5_000


class Listed(Struct, frozen=True, kw_only=True):
    """A configured provider with its settings."""

    id: str
    provider: Provider
    kind: str = ""
    """Kind in the settings, such as `twilio`. Empty if the provider was passed as a Python object."""
    channels: tuple[Channel, ...]
    max_in_flight: int = 128
    rate: RateLimit | None = None
    breaker: BreakerPolicy | None = None
    host_slots: int | None = None
    """Maximum number of attempts in flight per outlet. Set if hosts are the recipients': webhooks, Web Push
    and Apprise URLs. None if the provider itself is the outlet."""
    weight: int | None = None
    """Share of first attempts, relative to the weights of the other providers. 0 means failover only.

    None if first attempts are not split by weight.
    """
    threads: BlockingCalls | None = None
    """Threads for a plain `send`, which may block. None if it is async."""
    check_threads: BlockingCalls | None = None
    """Threads for a plain `check` and `look_up`. None if both are async.

    They are not those of `send`, so that checks that hang leave no message without a thread.
    """

    @property
    def breaker_policy(self) -> BreakerPolicy:
        """The provider's breaker policy, or the default of its first channel."""
        return self.breaker or default_policy(self.channels[0])

    async def check(self) -> bool:
        """Runs the provider's health check. Raises `NotImplementedError` if it has none."""
        check: Callable[[], Any] | None = getattr(self.provider, "check", None)
        if check is None:
            raise NotImplementedError("it has no health check")
        return bool(await _call(self.check_threads, check))

    async def send(self, delivery: Delivery) -> Any:
        """Sends a delivery through the provider, and returns its result."""
        return await _call(self.threads, self.provider.send, delivery)

    async def look_up(self, delivery: Delivery, message_id: str | None) -> Any:
        """Asks the provider what became of a message, and returns its result."""
        assert isinstance(self.provider, SupportsLookup), "checked by the caller"
        return await _call(self.check_threads, self.provider.look_up, delivery, message_id)


async def _call(threads: BlockingCalls | None, method: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a method of a provider and returns its result. A plain method runs in one of these threads."""
    if threads is None or is_async(method):
        return await method(*arguments)
    result = await threads.call(partial(method, *arguments))
    return await result if inspect.isawaitable(result) else result


class Closeable(Protocol):
    """A resource that several providers share. It is closed after the providers."""

    async def close(self) -> None:
        """Releases the resource."""


class ProviderRoster:
    """Providers by id, and routes by channel.

    The order of a route comes from `routes`. If the channel is missing there, the order of the providers is
    used.
    """

    def __init__(
        self,
        providers: Iterable[Listed],
        routes: Mapping[Channel, Sequence[str]] | None = None,
        shared: Closeable | None = None,
    ) -> None:
        self._shared = shared
        self._replaced: list[tuple[str, Provider]] = []
        """(id, provider) of those that were replaced and are not closed yet."""
        self._listed: dict[str, Listed] = {}
        for listed in providers:
            listed = _with_channels(listed)
            _check(listed)
            if listed.id in self._listed:
                raise ConfigError(f"providers.{listed.id}", "appears twice; provider ids must be unique")
            self._listed[listed.id] = listed
        self._routes = {channel: self._route(channel, (routes or {}).get(channel)) for channel in Channel}
        self._weights = {channel: self._split(channel) for channel in Channel}
        self.overrides: Mapping[Channel, tuple[SplitOverride, ...]] = {}
        """Overrides of the splits that were read last, by channel, newest first. Also those that have ended,
        because notifications that were accepted under them keep their first provider."""
        self.batch_providers = self._find_batch_providers()
        """The providers that send in batches, by id."""

    def __iter__(self) -> Iterator[Listed]:
        return iter(self._listed.values())

    def __contains__(self, provider: str) -> bool:
        return provider in self._listed

    def __getitem__(self, provider: str) -> Listed:
        return self._listed[provider]

    def get(self, provider: str) -> Listed | None:
        """Returns the provider with this id, or None if it is not configured."""
        return self._listed.get(provider)

    def find(self, name: str) -> Listed | None:
        """Returns the provider that is asked for by its id or an alias, or None if it is not configured."""
        return self._listed.get(find_provider_id(name, self._listed))

    @property
    def shared(self) -> Closeable | None:
        """The resource that the providers share, for those that replace others."""
        return self._shared

    def replace(self, changed: Iterable[Listed]) -> list[Provider]:
        """Replaces providers by others with the same id, and returns the old ones, which may be in use.

        Routes stay as they are, so a provider must serve the same channels as before. The caller passes the
        old providers to `close_replaced` once no attempt uses them any more.
        """
        old = []
        for new in changed:
            before = self._listed[new.id]
            assert new.channels == before.channels, "routes are not changed"
            self._listed[new.id] = new
            old.append((new.id, before.provider))
        self._replaced += old
        self.batch_providers = self._find_batch_providers()
        return [provider for _, provider in old]

    def senders_of(self, provider: str) -> list[SupportsBatchSend]:
        """Returns the objects that may have batch attempts of a provider: its own, and those it replaced."""
        old = [one for id, one in self._replaced if id == provider and isinstance(one, SupportsBatchSend)]
        return [*([self.batch_providers[provider]] if provider in self.batch_providers else ()), *old]

    async def close_replaced(self, providers: Iterable[Provider]) -> None:
        """Closes providers that were replaced. Ignores errors, and does not wait forever."""
        for one in providers:
            self._replaced = [(id, kept) for id, kept in self._replaced if kept is not one]
            await close_all([one])

    def _find_batch_providers(self) -> dict[str, SupportsBatchSend]:
        return {
            listed.id: listed.provider
            for listed in self
            if isinstance(listed.provider, SupportsBatchSend) and listed.provider.begins
        }

    async def close(self) -> None:
        """Closes all providers, then their shared resource. Ignores errors, and does not wait forever."""
        replaced = (provider for _, provider in self._replaced)
        shared = () if self._shared is None else (self._shared,)
        pools = [one for listed in self for one in (listed.threads, listed.check_threads) if one is not None]
        closing = (pool.close(_CLOSE_THREADS_MS) for pool in pools)
        await asyncio.gather(*closing, return_exceptions=True)
        await close_all([*(listed.provider for listed in self), *replaced, *shared])

    def route(self, channel: Channel) -> Route:
        """Returns the route of a channel. It is empty if the channel has no provider."""
        return self._routes[channel]

    def route_of(self, channel: Channel, id: str) -> Route:
        """Returns the route of a channel from the provider with which the notification's rounds begin.

        This is the provider of its first attempt, unless its breaker was open then. If first attempts are
        split by weight, it depends on the notification's id, and on the split at the time in the id.
        """
        route, weights = self._routes[channel], self._weights_of(channel, id)
        return rotate_route(route, first_step(route, weights, id).provider) if weights else route

    @property
    def channels(self) -> tuple[Channel, ...]:
        """Channels that have at least one provider."""
        return tuple(channel for channel, route in self._routes.items() if route)

    def weights(self, channel: Channel) -> Mapping[str, int]:
        """Returns the configured weights of a channel's route, by provider.

        The result is empty if all first attempts go to the first provider.
        """
        return self._weights[channel]

    def override_of(self, channel: Channel, id: str) -> SplitOverride | None:
        """Returns the override that was in force when the notification `id` was accepted, or None."""
        overrides = self.overrides.get(channel)
        return split_at(overrides, id_time_ms(id)) if overrides else None

    def _weights_of(self, channel: Channel, id: str) -> Mapping[str, int]:
        """Returns the weights by which the first provider of a notification is drawn."""
        override = self.override_of(channel, id)
        if override is None or not any(override.shares.get(step.provider) for step in self._routes[channel]):
            return self._weights[channel]  # an override may name only providers that this process lacks
        return override.shares

    def first_step(
        self,
        channel: Channel,
        forced: str | None,
        id: str = "",
        usable: Callable[[str], bool] = lambda _: True,
    ) -> RouteStep:
        """Returns the route step for the first attempt of the notification `id`.

        `forced` is the id or an alias of a provider that must be used. Raises `InvalidRequest` if the channel
        has no provider, or if the forced provider does not serve it.
        """
        route = self._routes[channel]
        if forced is None and route and not self._weights[channel] and channel not in self.overrides:
            return route[0]  # hot path: called for each notification, and most routes have no split
        if not route:
            able = ", ".join(c.value for c in self.channels) or "none yet"
            raise InvalidRequest("channel", f"{channel} has no provider; channels with a provider: {able}")
        if forced is None:
            weights = self._weights_of(channel, id)
            return first_step(route, weights, id, usable) if weights else route[0]
        wanted = find_provider_id(forced, self._listed)
        for step in route:
            if step.provider == wanted:
                return step
        known = ", ".join(step.provider for step in route)
        raise InvalidRequest("provider", f"{wanted!r} does not serve {channel}; providers that do: {known}")

    def _route(self, channel: Channel, order: Sequence[str] | None) -> Route:
        able = [listed.id for listed in self._listed.values() if channel in listed.channels]
        for name in order or ():
            if list(order or ()).count(name) > 1:
                raise ConfigError(f"routes.{channel}", f"contains {name!r} twice; list each provider once")
            if name not in able:
                raise ConfigError(
                    f"routes.{channel}",
                    f"contains {name!r}, which does not serve it; providers that do: {', '.join(able)}",
                )
        return tuple(RouteStep(name, self._listed[name].host_slots is not None) for name in (order or able))

    def _split(self, channel: Channel) -> dict[str, int]:
        """Returns the weights of a route. Raises `ConfigError` if some are missing or all are 0."""
        route = self._routes[channel]
        given = {step.provider: self._listed[step.provider].weight for step in route}
        weights = {provider: weight for provider, weight in given.items() if weight is not None}
        if len(route) < 2 or not weights:
            return {}
        for provider in given.keys() - weights.keys():
            raise ConfigError(
                f"providers.{provider}.weight",
                f"is missing; {channel} is split by weight, so each of its providers needs one "
                "(0 means failover only)",
            )
        if not any(weights.values()):
            raise ConfigError(
                f"providers.{route[0].provider}.weight",
                f"is 0, like all weights of {channel}; at least one must be greater",
            )
        return weights


async def close_all(resources: Iterable[Closeable]) -> None:
    """Closes providers and what they share, in this order. Ignores errors, and does not wait forever."""
    for one in resources:
        with suppress(Exception):
            await call_within(one.close, _CLOSE_TIMEOUT_MS)


def _with_channels(listed: Listed) -> Listed:
    """Returns the provider with members of `Channel` in place of their plain names."""
    if all(type(name) is Channel for name in listed.channels):
        return listed
    for name in listed.channels:
        if name not in list(Channel):
            raise ConfigError(
                f"providers.{listed.id}.channels",
                f"contains {name!r}; each must be one of {', '.join(Channel)}",
            )
    return replace(listed, channels=tuple(map(Channel, listed.channels)))


def _check(listed: Listed) -> None:
    if listed.max_in_flight < 1:
        raise ConfigError(
            f"providers.{listed.id}.max_in_flight", f"is {listed.max_in_flight}; it must be at least 1"
        )
    if listed.weight is not None and not 0 <= listed.weight <= MAX_WEIGHT:
        raise ConfigError(
            f"providers.{listed.id}.weight", f"is {listed.weight}; it must be between 0 and {MAX_WEIGHT}"
        )
    if not listed.channels:
        raise ConfigError(f"providers.{listed.id}.channels", "is empty; list at least one channel")
