"""Builds the parts and settings of the engine from Homing's settings."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from homing.compose.factories import import_object
from homing.compose.providers import ProviderArgument, Sinks, build_roster, build_sinks, check_roster
from homing.compose.stores import build_store
from homing.compose.templates import build_locale_policy, build_renderer
from homing.compose.timers_and_bridges import TimerArgument, build_bridges, build_timers
from homing.core.errors import ConfigError, InvalidRequest
from homing.core.notifications import Mode, Priority
from homing.core.ports.bridges import Bridge
from homing.core.ports.observers import Observer
from homing.core.ports.plug_ins import Directory, Renderer
from homing.core.ports.runtime import Clock, RandomSource
from homing.core.ports.stores import Backend
from homing.core.recipients.profiles import QuietWindow, read_window
from homing.core.recipients.quiet_hours import QuietHours
from homing.core.retry.presets import find_preset
from homing.core.routing.rate_limits import LONGEST_REFILL_MS, RateLimit, RateLimitRule, RateLimitRules
from homing.core.send_request import channels_named, priority_of
from homing.engine.engine import EngineParts, EngineSettings
from homing.engine.intake.requests import IntakeSettings
from homing.engine.intake.spool import Spool
from homing.engine.intake.unsubscribe_links import UnsubscribeLinkSettings
from homing.engine.operations.workers import PROCESS_SUFFIX
from homing.engine.provider_roster import Listed
from homing.engine.settings import WorkerSettings
from homing.engine.system_runtime import SystemClock, SystemRandomSource, is_zone
from homing.engine.upkeep.upkeep import UpkeepSettings
from homing.settings import PaceSettings, RateSettings, Settings

_SHORTEST_SECRET = 32


def build_parts(
    settings: Settings,
    *,
    backend: Backend | None = None,
    providers: Mapping[str, ProviderArgument] | None = None,
    sinks: Sinks | None = None,
    directory: Directory | None = None,
    renderer: Renderer | None = None,
    clock: Clock | None = None,
    random_source: RandomSource | None = None,
    observers: Sequence[Observer] = (),
    timers: Mapping[str, TimerArgument] | None = None,
    bridges: Mapping[str, Bridge] | None = None,
) -> EngineParts:
    """Builds the parts of an engine from the settings. Parts that are passed in are used as they are."""
    clock = clock or SystemClock()
    backend = backend or build_store(settings.store, clock, lease_ms=settings.worker.lease_ms)
    return EngineParts(
        backend=backend,
        roster=build_roster(settings, providers, clock),
        clock=clock,
        random_source=random_source or SystemRandomSource(),
        sinks={**build_sinks(settings, clock), **(sinks or {})},
        directory=directory,
        renderer=renderer or build_renderer(settings, backend, clock),
        observers=tuple(observers),
        timers=build_timers(settings, timers),
        bridges=build_bridges(settings, bridges, clock),
    )


async def check_settings(
    settings: Settings,
    *,
    backend: Backend | None,
    providers: Sequence[Listed],
    renderer: Renderer | None,
    clock: Clock,
) -> None:
    """Raises `ConfigError` if no engine can be built from the settings and the parts that are passed in.

    Nothing that it builds is opened or used.
    """
    spool = build_engine_settings(settings, own_renderer=renderer is not None).spool
    if spool is not None:
        Spool(spool)
    backend = backend or build_store(settings.store, clock, lease_ms=settings.worker.lease_ms)
    if renderer is None:
        build_renderer(settings, backend, clock)
    build_sinks(settings)
    build_timers(settings)
    build_bridges(settings)
    await check_roster(settings, providers, clock)


_PRIVATE_POLL_MS = 10_000
"""Shortest poll interval with a store in memory. No other process can use such a store, and this process
wakes its worker itself. So hours of virtual time pass quickly."""


def _worker_settings(settings: Settings) -> WorkerSettings:
    if settings.store != "memory:":
        return settings.worker
    return replace(settings.worker, poll_ms=max(settings.worker.poll_ms, _PRIVATE_POLL_MS))


def build_engine_settings(settings: Settings, *, own_renderer: bool = False) -> EngineSettings:
    """Converts the settings to those of the engine.

    `own_renderer` means that the application provides the renderer. If the settings also declare no locales,
    the renderer gets each recipient's locale unchanged.
    """
    return EngineSettings(
        name=settings.worker_name or f"{socket.gethostname()}:{os.getpid()}",
        tenant=settings.tenant,
        preset=find_preset(settings.preset),
        rules=settings.rules,
        intake=IntakeSettings(
            limits=settings.limits,
            synchronous_types=frozenset(settings.synchronous_types),
            dedup_windows_ms=settings.dedup_windows_ms,
            default_channel=build_default_channel(settings),
            locales=None
            if own_renderer and not settings.templates.locales
            else build_locale_policy(settings),
        ),
        worker=_worker_settings(settings),
        process=settings.process,
        process_name=f"{settings.worker_name or socket.gethostname()}{PROCESS_SUFFIX}",
        slots=settings.slots,
        upkeep=UpkeepSettings(retention=settings.retention, thresholds=settings.thresholds),
        search=settings.search,
        look_ups=settings.look_ups,
        receipts=settings.receipts,
        quiet_hours=build_quiet_hours(settings),
        time_zone=settings.quiet_hours.time_zone,
        paces=RateLimitRules(
            recipient=build_rate_limit_rule(settings.limits.recipient, "limits.recipient"),
            tenant=build_rate_limit_rule(settings.limits.tenant, "limits.tenant"),
        ),
        links=build_link_settings(settings),
        queue_names={
            Mode.SYNCHRONOUS: "",
            Mode.PRIORITY: settings.queue_names.priority,
            Mode.STANDARD: settings.queue_names.standard,
            Mode.BULK: settings.queue_names.bulk,
        },
        spool=Path(settings.spool) if settings.spool else None,
        trace_share=settings.tracing.share if settings.tracing.endpoint else 0.0,
        store_timeout_ms=settings.store_timeout_ms,
    )


def build_default_channel(settings: Settings) -> str:
    """Returns the channel, or `both`, of requests that name none. Empty if they are rejected."""
    chosen = settings.default_channel or find_preset(settings.preset).default_channel
    if chosen:
        try:
            channels_named(chosen, ())
        except InvalidRequest as error:
            raise ConfigError("default_channel", str(error).removeprefix("channel: ")) from None
    return chosen


def build_link_settings(settings: Settings) -> UnsubscribeLinkSettings:
    """Builds the settings of unsubscribe links.

    Raises `ConfigError` if the secret is too short, or if links are enabled without a public https URL.
    """
    own, url = settings.unsubscribe, settings.service.public_url
    given = (
        import_object("homing.net.secrets:read_secret")("unsubscribe.secret", own.secret)
        if own.secret
        else None
    )
    revealed = given.reveal() if given else ""
    if revealed and len(revealed) < _SHORTEST_SECRET:
        raise ConfigError("unsubscribe.secret", f"is too short; use at least {_SHORTEST_SECRET} characters")
    if own.enabled and not url.startswith("https://"):
        raise ConfigError("unsubscribe.enabled", "requires service.public_url to start with https://")
    return UnsubscribeLinkSettings(
        public_url=url if own.enabled else "",
        exempt_categories=frozenset(own.exempt_categories),
        secret=revealed,
    )


def build_quiet_hours(settings: Settings) -> QuietHours:
    """Builds the default quiet hours and their exemptions. Raises `ConfigError` if they are not valid."""
    own = settings.quiet_hours
    if not is_zone(own.time_zone):
        raise ConfigError(
            "quiet_hours.time_zone", f"is {own.time_zone!r}; it must be a time zone like Europe/Berlin"
        )
    try:
        window = read_window(QuietWindow(own.start, own.end), "quiet_hours")
    except InvalidRequest as error:
        raise ConfigError(error.field, str(error).removeprefix(f"{error.field}: ")) from None
    return QuietHours(
        window=window,
        exempt_priorities=_priorities(own.exempt_priorities, "quiet_hours"),
        exempt_categories=frozenset(own.exempt_categories),
        exempt_types=frozenset(own.exempt_types),
    )


def build_rate_limit_rule(own: PaceSettings, where: str) -> RateLimitRule:
    """Builds a rate limit rule: the default limit, and the limits of tenants that have their own."""
    return RateLimitRule(
        limit=_rate(own, where),
        tenants={tenant: _rate(rate, f"{where}.of.{tenant}") for tenant, rate in own.of.items()},
        exempt_priorities=_priorities(own.exempt_priorities, where),
    )


def _rate(own: PaceSettings | RateSettings, where: str) -> RateLimit | None:
    """Returns the rate limit, or None if `most` is 0."""
    if not own.most:
        return None
    limit = RateLimit(own.most * 1000 / own.per_ms, own.burst or own.most)
    if limit.burst * 1000 / limit.per_second > LONGEST_REFILL_MS:
        raise ConfigError(f"{where}.per_ms", "is too long; the burst must be available again within 7 days")
    return limit


def _priorities(names: Sequence[str], where: str) -> frozenset[Priority]:
    try:
        return frozenset(priority_of(name) for name in names)
    except InvalidRequest as error:
        problem = str(error).removeprefix(f"{error.field}: ")
        raise ConfigError(f"{where}.exempt_priorities", problem) from None
