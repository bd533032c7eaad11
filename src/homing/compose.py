"""From settings to wired objects: the only place that names concrete classes."""

from __future__ import annotations

import importlib.util
import os
import random
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict, replace

from homing.config import PaceSettings, RateSettings, Settings
from homing.core.errors import ConfigError, InvalidRequest
from homing.core.events import EVENT_NAMES
from homing.core.limits import RateLimit
from homing.core.locale import LocalePolicy
from homing.core.looking_up import LookUpPolicy
from homing.core.model import Channel, Mode, Priority, Retention
from homing.core.observing import Observer
from homing.core.pacing import LONGEST_REFILL_MS, Pace, Paces
from homing.core.ports import Backend, Chance, Clock, Directory, EventCall, Provider, Renderer, Sink
from homing.core.presets import preset
from homing.core.quiet_hours import QuietHours
from homing.core.receipt_health import ReceiptPolicy
from homing.core.recipients import QuietWindow, window_from
from homing.core.request import SendLimits, priority_of, provider_id
from homing.engine.clock import SystemClock
from homing.engine.homing import Engine, EngineSettings, Parts
from homing.engine.intake import IntakeSettings
from homing.engine.relay import DEFAULT_EVENTS
from homing.engine.room import Slots
from homing.engine.roster import Listed, Roster
from homing.engine.upkeep import Thresholds, UpkeepSettings
from homing.engine.worker import WorkerSettings
from homing.engine.zones import is_zone
from homing.making import PROVIDERS, SINKS, Shared, load, make

if TYPE_CHECKING:
    from homing.observing.endpoint import Endpoint
    from homing.observing.metrics import Metrics
    from homing.rendering.checking import CheckReport
    from homing.rendering.templates import FolderTemplates
    from homing.stores.copying import Copying

# kind → "module:class"; imported when used, so that nothing costs anything before.
_STORES = {
    "memory": "homing.stores.memory:MemoryStore",
    "sqlite": "homing.stores.sqlite:SqliteStore",
    "postgres": "homing.stores.postgres:PostgresStore",
}
_LISTED_KEYS = ("max_in_flight", "rate_per_second", "rate_burst", "host_slots", "weight", "channels", "kind")

Given = Provider | Listed | Callable[..., Any]
"""A provider from Python: an object with `send`, a function of a `Delivery`, or either with its settings."""

Subscribed = tuple[Sink, frozenset[str]]
Sinks = Mapping[str, Subscribed]


def parts(
    settings: Settings,
    *,
    backend: Backend | None = None,
    providers: Mapping[str, Given] | None = None,
    sinks: Sinks | None = None,
    directory: Directory | None = None,
    renderer: Renderer | None = None,
    clock: Clock | None = None,
    chance: Chance | None = None,
    observers: Sequence[Observer] = (),
) -> Parts:
    """Everything that is plugged in; what is not given is made from the settings."""
    clock = clock or SystemClock()
    return Parts(
        backend=backend or store(settings.store, clock),
        roster=roster(settings, providers, clock),
        clock=clock,
        chance=chance or random.SystemRandom(),
        sinks={**configured_sinks(settings), **(sinks or {})},
        directory=directory,
        renderer=renderer or (templates(settings) if settings.templates.folder else None),
        observers=tuple(observers),
    )


def engine_settings(settings: Settings) -> EngineSettings:
    """The engine's part of the settings."""
    r, t = settings.retention, settings.thresholds
    return EngineSettings(
        name=settings.worker_name or f"{socket.gethostname()}:{os.getpid()}",
        tenant=settings.tenant,
        preset=preset(settings.preset),
        rules=settings.rules,
        intake=IntakeSettings(
            limits=send_limits(settings),
            synchronous_types=frozenset(settings.synchronous_types),
            dedup_windows_ms=settings.dedup_windows_ms,
            locales=locales(settings),
        ),
        worker=WorkerSettings(poll_ms=settings.worker.poll_ms, lease_ms=settings.worker.lease_ms or None),
        slots=Slots(
            priority=settings.slots.priority, standard=settings.slots.standard, bulk=settings.slots.bulk
        ),
        upkeep=UpkeepSettings(
            retention=Retention(
                delivered_ms=r.delivered_ms, sent_ms=r.sent_ms, others_ms=r.others_ms, keys_ms=r.keys_ms
            ),
            thresholds=Thresholds(
                retry_backlog=t.retry_backlog,
                failure_rate=t.failure_rate,
                failure_rate_of=t.failure_rate_of,
                oldest_retry_ms=t.oldest_retry_ms,
                dead_letters_growing=t.dead_letters_growing,
            ),
        ),
        look_ups=LookUpPolicy(**asdict(settings.look_ups)),
        receipts=ReceiptPolicy(**asdict(settings.receipts)),
        quiet_hours=quiet_hours(settings),
        time_zone=settings.quiet_hours.time_zone,
        paces=Paces(
            recipient=pace(settings.limits.recipient, "limits.recipient"),
            tenant=pace(settings.limits.tenant, "limits.tenant"),
        ),
        queue_names={
            Mode.SYNCHRONOUS: "",
            Mode.PRIORITY: settings.queue_names.priority,
            Mode.STANDARD: settings.queue_names.standard,
            Mode.BULK: settings.queue_names.bulk,
        },
        spool=Path(settings.spool) if settings.spool else None,
    )


def send_limits(settings: Settings) -> SendLimits:
    """The most that a request may carry."""
    return SendLimits(
        content_bytes=settings.limits.content_bytes,
        attachments_bytes=settings.limits.attachments_bytes,
        metadata_bytes=settings.limits.metadata_bytes,
        fan_out=settings.limits.fan_out,
    )


def quiet_hours(settings: Settings) -> QuietHours:
    """When nobody is to be disturbed, and by what all the same."""
    own = settings.quiet_hours
    if not is_zone(own.time_zone):
        raise ConfigError("quiet_hours.time_zone", f"is {own.time_zone!r}; it must be one like Europe/Berlin")
    try:
        window = window_from(QuietWindow(own.start, own.end), "quiet_hours")
    except InvalidRequest as error:
        raise ConfigError(error.field, str(error).removeprefix(f"{error.field}: ")) from None
    return QuietHours(
        window=window,
        exempt_priorities=_priorities(own.exempt_priorities, "quiet_hours"),
        exempt_categories=frozenset(own.exempt_categories),
        exempt_types=frozenset(own.exempt_types),
    )


def pace(own: PaceSettings, where: str) -> Pace:
    """A rate limit of the settings, with the tenants that have another."""
    return Pace(
        limit=_rate(own, where),
        tenants={tenant: _rate(rate, f"{where}.of.{tenant}") for tenant, rate in own.of.items()},
        exempt_priorities=_priorities(own.exempt_priorities, where),
    )


def _rate(own: PaceSettings | RateSettings, where: str) -> RateLimit | None:
    """None: no limit."""
    for name, least in (("most", 0), ("per_ms", 1), ("burst", 0)):
        _whole(getattr(own, name), f"{where}.{name}", least=least)
    if not own.most:
        return None
    limit = RateLimit(own.most * 1000 / own.per_ms, own.burst or own.most)
    if limit.burst * 1000 / limit.per_second > LONGEST_REFILL_MS:
        raise ConfigError(f"{where}.per_ms", "is too long for this burst: it must come back within 7 days")
    return limit


def _priorities(names: Sequence[str], where: str) -> frozenset[Priority]:
    try:
        return frozenset(priority_of(name) for name in names)
    except InvalidRequest as error:
        told = str(error).removeprefix(f"{error.field}: ")
        raise ConfigError(f"{where}.exempt_priorities", told) from None


def locales(settings: Settings) -> LocalePolicy | None:
    """The project's locales; None where none are declared and there is no folder of templates."""
    own = settings.templates
    if not own.locales and not own.folder:
        return None
    rejects = own.unmatched_locale == "reject"
    if own.unmatched_locale == "preset":
        rejects = preset(settings.preset).reject_unmatched_locale
    return LocalePolicy(
        declared=own.locales or (own.default_locale,),
        default=own.default_locale,
        tenant_defaults=own.tenant_locales,
        reject_unmatched=rejects,
    )


def templates(settings: Settings) -> FolderTemplates:
    """The renderer over the folder of templates."""
    folder = settings.templates.folder
    if not folder:
        raise ConfigError("templates.folder", "is not set; name the folder of your templates in homing.toml")
    if not Path(folder).is_dir():
        raise ConfigError("templates.folder", f"{folder!r} is not a folder")
    if importlib.util.find_spec("jinja2") is None:
        raise ConfigError("templates", "needs jinja2, which is missing: pip install 'homing[templates]'")
    made: FolderTemplates = load("homing.rendering.templates:FolderTemplates")(Path(folder))
    return made


def check_templates(settings: Settings) -> CheckReport:
    """Whether all templates are there in all locales, and render with their samples."""
    policy = locales(settings)
    made: CheckReport = load("homing.rendering.checking:check")(
        templates(settings).library(), policy.declared if policy else (), send_limits(settings)
    )
    return made


def metrics(settings: Settings) -> Metrics:
    """An observer that counts for Prometheus."""
    if importlib.util.find_spec("prometheus_client") is None:
        raise ConfigError(
            "metrics", "needs prometheus-client, which is missing: pip install 'homing[metrics]'"
        )
    made: Metrics = load("homing.observing.metrics:Metrics")(
        tenants=settings.metrics.tenants, queue_names=engine_settings(settings).queue_names
    )
    return made


def endpoint(settings: Settings, counted: Metrics, engine: Engine) -> Endpoint:
    """Where /metrics, /healthz and /readyz of an engine are served; counts what it is told from now on."""
    counted.watch(engine)
    listen = load("homing.observing.endpoint:listen_at")(settings.metrics.listen, "metrics.listen")
    pages = load("homing.observing.pages:pages")(counted, engine)
    made: Endpoint = load("homing.observing.endpoint:Endpoint")(listen, pages)
    return made


def log_to_stderr(format: str, level: str) -> None:
    """Log lines of this process, redacted."""
    load("homing.observing.logs:configure")(format, level)


def store(address: str, clock: Clock | None = None) -> Backend:
    """A store from its address: a file's path, `sqlite:PATH`, `memory:` or `postgresql://HOST/DATABASE`."""
    if address == "memory:":
        made = load(_STORES["memory"])(clock or SystemClock())
    elif address.startswith(("postgresql://", "postgres://")):
        made = load(_STORES["postgres"])(address)
    elif "://" in address:
        kind = address.partition("://")[0]
        raise ConfigError("store", f"{kind}:// is not supported; give a file, postgresql:// or memory:")
    else:
        path = address.removeprefix("sqlite:")
        if not path:
            raise ConfigError("store", "is empty; give the path of a SQLite file, or memory:")
        made = load(_STORES["sqlite"])(path)
    backend: Backend = made
    return backend


def copying(source: str, target: str, *, page: int) -> Copying:
    """What `homing db copy` works with: from a SQLite file to a PostgreSQL database."""
    if "://" in source or source == "memory:":
        raise ConfigError("source", "must be a SQLite file")
    if not target.startswith(("postgresql://", "postgres://")):
        raise ConfigError("target", "must be postgresql://HOST/DATABASE")
    made: Copying = load("homing.stores.copying:Copying")(
        load("homing.stores.sqlite.copied:SqliteSource")(source.removeprefix("sqlite:")),
        load("homing.stores.postgres.copied:PostgresTarget")(target),
        page=page,
    )
    return made


def roster(
    settings: Settings, providers: Mapping[str, Given] | None = None, clock: Clock | None = None
) -> Roster:
    """The configured providers and those given from Python; with neither, the console serves all channels."""
    shared = Shared(settings.http, (clock or SystemClock()).now_ms)
    listed = [_configured(name, dict(options), shared) for name, options in settings.providers.items()]
    for name, given in (providers or {}).items():
        known = provider_id(name)
        listed.append(replace(given, id=known) if isinstance(given, Listed) else list_provider(known, given))
    if not listed:
        listed.append(_configured("console", {"kind": "console"}, shared))
    routes = {
        _channel(name, f"routes.{name}"): [provider_id(one) for one in order]
        for name, order in settings.routes.items()
    }
    return Roster(listed, routes, shared)


def list_provider(
    name: str, given: Provider | Callable[..., Any], channels: Sequence[str] | None = None, **options: Any
) -> Listed:
    """A provider from Python: an object with `send`, or a function of a `Delivery`."""
    provider: Any = given
    if not hasattr(given, "send"):
        provider = load("homing.providers.function:FunctionProvider")(given)
    has = _traits(given)
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


def configured_sinks(settings: Settings) -> Sinks:
    """The sinks that the settings name."""
    found: dict[str, tuple[Sink, frozenset[str]]] = {}
    for name, options in settings.sinks.items():
        rest = dict(options)
        kind = rest.pop("kind", name)
        names = _event_names(rest.pop("events", DEFAULT_EVENTS), f"sinks.{name}.events")
        found[name] = (make("sinks", name, kind, SINKS, rest), names)
    return found


def callback_sink(call: EventCall, events: Iterable[str]) -> Subscribed:
    """A Python function that hears of these events."""
    sink: Sink = load("homing.sinks.callback:CallbackSink")(call)
    return sink, _event_names(events, "events")


def _event_names(names: Any, where: str) -> frozenset[str]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise ConfigError(where, f"is {names!r}; give a list of event names")
    found = frozenset(names)
    for unknown in found - EVENT_NAMES:
        raise ConfigError(where, f"names {unknown!r}; allowed are {', '.join(sorted(EVENT_NAMES))}")
    return found


def _configured(name: str, options: dict[str, Any], shared: Shared) -> Listed:
    kind = options.get("kind", name)
    rate, weight = options.get("rate_per_second"), options.get("weight")
    own = {key: value for key, value in options.items() if key not in _LISTED_KEYS}
    provider = make("providers", name, kind, PROVIDERS, own, shared)
    has = _traits(provider)
    hosts = options.get("host_slots", has.get("host_slots"))
    burst = options.get("rate_burst")
    if rate is None and burst is not None:
        raise ConfigError(f"providers.{name}.rate_burst", "is given without rate_per_second")
    try:
        limit = (
            None
            if rate is None
            else RateLimit(float(rate), max(1, int(rate)) if burst is None else int(burst))
        )
    except (ConfigError, TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"providers.{name}.rate_per_second", str(error)) from None
    return Listed(
        id=provider_id(name),
        provider=provider,
        kind=kind,
        channels=_channels(options.get("channels", has.get("channels")), name),
        max_in_flight=_whole(options.get("max_in_flight", 128), f"providers.{name}.max_in_flight"),
        rate=limit,
        breaker=has.get("breaker"),
        host_slots=None if hosts is None else _whole(hosts, f"providers.{name}.host_slots", least=1),
        weight=None if weight is None else _whole(weight, f"providers.{name}.weight"),
    )


def _traits(provider: Any) -> dict[str, Any]:
    """What a provider's class says of itself; settings win over it."""
    names = ("channels", "host_slots", "breaker")
    return {name: found for name in names if (found := getattr(provider, name, None)) is not None}


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
        raise ConfigError(where, f"names {name!r}; allowed are {allowed}") from None


def _whole(value: Any, where: str, *, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(where, f"is {value!r}; it must be a whole number, at least {least}")
    return value
