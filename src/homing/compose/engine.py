"""Builds the parts and settings of the engine from the settings file."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import asdict

from homing.compose.providers import Given, Sinks, configured_sinks, roster
from homing.compose.stores import store
from homing.compose.templates import locales, send_limits, tenant_templates
from homing.compose.whole import whole
from homing.config import PaceSettings, RateSettings, Settings
from homing.core.errors import ConfigError, InvalidRequest
from homing.core.limits import RateLimit
from homing.core.looking_up import LookUpPolicy
from homing.core.model import Mode, Priority, Retention
from homing.core.observing import Observer
from homing.core.pacing import LONGEST_REFILL_MS, Pace, Paces
from homing.core.ports import Backend, Chance, Clock, Directory, Renderer
from homing.core.presets import preset
from homing.core.quiet_hours import QuietHours
from homing.core.receipt_health import ReceiptPolicy
from homing.core.recipients import QuietWindow, window_from
from homing.core.request import priority_of
from homing.engine.chance import SystemChance
from homing.engine.clock import SystemClock
from homing.engine.homing import EngineSettings, Parts
from homing.engine.intake import IntakeSettings
from homing.engine.room import Slots
from homing.engine.unsubscribing import LinkSettings
from homing.engine.upkeep import Thresholds, UpkeepSettings
from homing.engine.worker import WorkerSettings
from homing.engine.zones import is_zone
from homing.making import load

_SHORTEST_SECRET = 32


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
    """Builds the parts of an engine. Those that are not given are made from the settings."""
    clock = clock or SystemClock()
    backend = backend or store(settings.store, clock)
    return Parts(
        backend=backend,
        roster=roster(settings, providers, clock),
        clock=clock,
        chance=chance or SystemChance(),
        sinks={**configured_sinks(settings), **(sinks or {})},
        directory=directory,
        renderer=renderer or tenant_templates(settings, backend, clock),
        observers=tuple(observers),
    )


def engine_settings(settings: Settings, *, own_renderer: bool = False) -> EngineSettings:
    """Converts the settings to those of the engine.

    With `own_renderer`, the application renders the content. If the settings declare no locales either,
    recipients' locales are passed to it unchanged.
    """
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
            locales=None if own_renderer and not settings.templates.locales else locales(settings),
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
        links=links(settings),
        queue_names={
            Mode.SYNCHRONOUS: "",
            Mode.PRIORITY: settings.queue_names.priority,
            Mode.STANDARD: settings.queue_names.standard,
            Mode.BULK: settings.queue_names.bulk,
        },
        spool=Path(settings.spool) if settings.spool else None,
    )


def links(settings: Settings) -> LinkSettings:
    """Builds the settings of unsubscribe links.

    Raises `ConfigError` if they are enabled without a public URL.
    """
    own, url = settings.unsubscribe, settings.service.public_url
    given = load("homing.providers.secret:secret")("unsubscribe.secret", own.secret) if own.secret else None
    revealed = given.reveal() if given else ""
    if revealed and len(revealed) < _SHORTEST_SECRET:
        raise ConfigError("unsubscribe.secret", f"is too short; use at least {_SHORTEST_SECRET} characters")
    if own.enabled and not url.startswith("https://"):
        raise ConfigError("unsubscribe.enabled", "requires service.public_url to start with https://")
    return LinkSettings(
        public_url=url if own.enabled else "",
        exempt_categories=frozenset(own.exempt_categories),
        secret=revealed,
    )


def quiet_hours(settings: Settings) -> QuietHours:
    """Builds the default quiet hours and their exemptions."""
    own = settings.quiet_hours
    if not is_zone(own.time_zone):
        raise ConfigError(
            "quiet_hours.time_zone", f"is {own.time_zone!r}; it must be a time zone like Europe/Berlin"
        )
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
    """Builds a rate limit with the tenants that have a different one."""
    return Pace(
        limit=_rate(own, where),
        tenants={tenant: _rate(rate, f"{where}.of.{tenant}") for tenant, rate in own.of.items()},
        exempt_priorities=_priorities(own.exempt_priorities, where),
    )


def _rate(own: PaceSettings | RateSettings, where: str) -> RateLimit | None:
    """Returns the rate limit, or None if `most` is 0."""
    for name, least in (("most", 0), ("per_ms", 1), ("burst", 0)):
        whole(getattr(own, name), f"{where}.{name}", least=least)
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
