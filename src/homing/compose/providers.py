"""Builds the provider roster and the sinks from settings, and from objects given in Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from homing.compose.factories import (
    LOCAL_SINKS,
    PROVIDERS,
    SINKS,
    PlugInDependencies,
    build_from_settings,
    check_whole_number,
    import_object,
)
from homing.core.errors import ConfigError
from homing.core.lifecycle.events import EVENT_NAMES
from homing.core.notifications import Channel
from homing.core.ports.plug_ins import EventCallback, Sink, SubscribedSink
from homing.core.ports.providers import Provider, UsesThreads
from homing.core.ports.runtime import DEFAULT_THREADS, Clock, RunsBlockingCalls, is_async
from homing.core.routing.breaker import BREAKER_OFF, BreakerPolicy, default_policy
from homing.core.routing.rate_limits import RateLimit
from homing.core.send_request import find_provider_id, provider_id
from homing.engine.provider_roster import Listed, ProviderRoster, close_all
from homing.engine.system_runtime import SystemClock
from homing.engine.upkeep.outbox_relay import DEFAULT_EVENTS
from homing.settings import Settings
from homing.settings.conversion import read_table

LISTED_KEYS = (
    "max_in_flight",
    "rate_per_second",
    "rate_burst",
    "host_slots",
    "weight",
    "channels",
    "breaker",
    "kind",
)
"""Keys that the table of any provider may have. All other keys are settings of the provider's kind."""

_CHECK_THREADS = 4
"""Number of plain health checks and lookups of one provider that may run at the same time."""

ProviderArgument = Provider | Listed | Callable[..., Any]
"""A provider given in Python: an object with `send`, a function of a `Delivery`, or a `Listed` with
settings."""

Sinks = Mapping[str, SubscribedSink]


def build_roster(
    settings: Settings, providers: Mapping[str, ProviderArgument] | None = None, clock: Clock | None = None
) -> ProviderRoster:
    """Builds the roster of the configured providers and those given in Python.

    If there are no providers, the console provider serves all channels.
    """
    clock = clock or SystemClock()
    shared = PlugInDependencies(settings.http, clock.now_ms)
    given = []
    for name, one in (providers or {}).items():
        known = provider_id(name)
        given.append(replace(one, id=known) if isinstance(one, Listed) else list_provider(known, one))
    listed = give_threads([*_build_configured(settings, shared, alone=not given), *given], clock)
    return ProviderRoster(listed, _build_routes(settings, listed), shared)


async def check_roster(settings: Settings, given: Sequence[Listed], clock: Clock) -> None:
    """Raises `ConfigError` if a roster cannot be built from the settings and the providers given in Python.

    Those that it builds are closed again. The given ones are not changed.
    """
    shared = PlugInDependencies(settings.http, clock.now_ms)
    built = _build_configured(settings, shared, alone=not given)
    try:
        listed = [*built, *given]
        ProviderRoster(listed, _build_routes(settings, listed))
    finally:
        await close_all([*(listed.provider for listed in built), shared])


def _build_configured(settings: Settings, shared: PlugInDependencies, *, alone: bool) -> list[Listed]:
    """Builds the providers of the settings, or the console if there are none and they are the only ones."""
    tables = settings.providers or ({"console": {}} if alone else {})
    return [build_listed(name, dict(options), shared) for name, options in tables.items()]


def _build_routes(settings: Settings, listed: Sequence[Listed]) -> dict[Channel, list[str]]:
    ids = {one.id for one in listed}
    return {
        _channel(name, f"routes.{name}"): [find_provider_id(one, ids) for one in order]
        for name, order in settings.routes.items()
    }


def give_threads(listed: Sequence[Listed], clock: Clock) -> list[Listed]:
    """Gives each provider that makes blocking calls as many threads as it may have attempts in flight."""

    def threads(name: str, most: int) -> Any:
        if isinstance(clock, RunsBlockingCalls):
            return clock.blocking_calls(name, most)
        return import_object("homing.providers.common.thread_pool:ThreadPool")(name, most)

    found = []
    for one in listed:
        if isinstance(one.provider, UsesThreads):
            one.provider.use_threads(threads(f"homing-{one.id}", one.max_in_flight))
        if one.threads is None and _has_plain(one.provider, "send"):
            one = replace(one, threads=threads(f"homing-{one.id}", one.max_in_flight))
        if one.check_threads is None and _has_plain(one.provider, "check", "look_up"):
            one = replace(one, check_threads=threads(f"homing-{one.id}-check", _CHECK_THREADS))
        found.append(one)
    return found


def list_provider(
    name: str, given: Provider | Callable[..., Any], channels: Sequence[str] | None = None, **options: Any
) -> Listed:
    """Builds the roster entry of a provider: an object with `send`, or a function of a `Delivery`."""
    provider: Any = given
    if isinstance(given, type):
        raise ConfigError(f"providers.{name}", f"is the class {given.__name__}; give an instance of it")
    if not hasattr(provider, "send"):
        if not callable(provider):
            kind = type(provider).__name__
            raise ConfigError(f"providers.{name}", f"is a {kind}; give an object with send, or a function")
        provider = import_object("homing.providers.local.function:FunctionProvider")(given)
    has = _traits(given)
    if "max_in_flight" not in has and "max_in_flight" in (own := _traits(provider)):
        has["max_in_flight"] = own["max_in_flight"]
    serves = channels if channels is not None else has.pop("channels", None)
    return Listed(
        **{
            **has,
            **options,
            "id": provider_id(name),
            "provider": provider,
            "channels": _channels(serves, name),
        }
    )


def build_sinks(settings: Settings, clock: Clock | None = None) -> Sinks:
    """Builds the sinks that the settings name. A sink that gets an HTTP client owns it, and closes it."""
    now_ms = (clock or SystemClock()).now_ms
    found: dict[str, SubscribedSink] = {}
    for name, options in settings.sinks.items():
        rest = dict(options)
        kind = rest.pop("kind", name)
        events = rest.pop("events", None)
        sink: Sink = build_from_settings(
            "sinks", name, kind, SINKS, rest, PlugInDependencies(settings.http, now_ms)
        )
        if events is None:
            events = getattr(sink, "default_events", DEFAULT_EVENTS)
        names = _event_names(events, f"sinks.{name}.events")
        found[name] = SubscribedSink(sink, names, str(kind), durable=kind not in LOCAL_SINKS)
    return found


def build_callback_sink(call: EventCallback, events: Iterable[str]) -> SubscribedSink:
    """Builds a sink that calls a Python function with each event of these names."""
    sink: Sink = import_object("homing.sinks.callback:CallbackSink")(call)
    return SubscribedSink(sink, _event_names(events, "events"))


def _event_names(names: Any, where: str) -> frozenset[str]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise ConfigError(where, f"is {names!r}; give a list of event names")
    found = frozenset(names)
    for unknown in found - EVENT_NAMES:
        raise ConfigError(
            where, f"has {unknown!r}; each event must be one of {', '.join(sorted(EVENT_NAMES))}"
        )
    return found


def build_listed(name: str, options: dict[str, Any], shared: PlugInDependencies) -> Listed:
    """Builds the roster entry of a provider from its table in the settings."""
    kind = options.get("kind", name)
    rate, weight = options.get("rate_per_second"), options.get("weight")
    own = {key: value for key, value in options.items() if key not in LISTED_KEYS}
    provider = build_from_settings("providers", name, kind, PROVIDERS, own, shared)
    has = _traits(provider)
    hosts = options.get("host_slots", has.get("host_slots"))
    burst = options.get("rate_burst")
    if rate is None and burst is not None:
        raise ConfigError(f"providers.{name}.rate_burst", "is set without rate_per_second; set both")
    try:
        limit = (
            None
            if rate is None
            else RateLimit(float(rate), max(1, int(rate)) if burst is None else int(burst))
        )
    except (ConfigError, TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"providers.{name}.rate_per_second", str(error)) from None
    channels = _channels(options.get("channels", has.get("channels")), name)
    return Listed(
        id=provider_id(name),
        provider=provider,
        kind=kind,
        channels=channels,
        max_in_flight=check_whole_number(
            options.get("max_in_flight", has.get("max_in_flight", 128)), f"providers.{name}.max_in_flight"
        ),
        rate=limit,
        breaker=_breaker(options.get("breaker"), has.get("breaker"), channels, f"providers.{name}.breaker"),
        host_slots=None
        if hosts is None
        else check_whole_number(hosts, f"providers.{name}.host_slots", least=1),
        weight=None if weight is None else check_whole_number(weight, f"providers.{name}.weight"),
    )


def _breaker(
    given: Any, own: BreakerPolicy | None, channels: tuple[Channel, ...], where: str
) -> BreakerPolicy | None:
    """Returns the breaker policy in the settings, or the provider's own policy if there is none.

    `given` is a table, whose missing keys come from the provider's own policy or the default of its channel,
    or `"off"`.
    """
    if given is None:
        return own
    if isinstance(given, str):
        if given.strip().lower() != "off":
            raise ConfigError(where, f'is {given!r}; it must be "off" or a table [{where}]')
        return BREAKER_OFF
    default = own or default_policy(channels[0] if channels else Channel.EMAIL)
    return read_table(given, BreakerPolicy, where, default)


def _traits(provider: Any) -> dict[str, Any]:
    """Returns the properties that a provider's class defines. Settings override them."""
    names = ("channels", "host_slots", "breaker", "max_in_flight")
    found = {name: value for name in names if (value := getattr(provider, name, None)) is not None}
    if _has_plain(provider, "send"):
        found.setdefault("max_in_flight", DEFAULT_THREADS)
    return found


def _has_plain(provider: Any, *names: str) -> bool:
    """Returns True if the provider has one of these methods as a plain method, which may block."""
    methods = (getattr(provider, name, None) for name in names)
    return any(method is not None and not is_async(method) for method in methods)


def _channels(names: Any, provider: str) -> tuple[Channel, ...]:
    if names is None:
        return tuple(Channel)
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise ConfigError(f"providers.{provider}.channels", f"is {names!r}; give a list of channels")
    return tuple(_channel(name, f"providers.{provider}.channels") for name in names)


def _channel(name: str, where: str) -> Channel:
    try:
        return Channel(name)
    except ValueError:
        allowed = ", ".join(channel.value for channel in Channel)
        raise ConfigError(where, f"has {name!r}; each channel must be one of {allowed}") from None
