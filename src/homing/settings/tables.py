"""The tables of the settings file.

Each table is the struct of the part that uses it, with the defaults and bounds of its settings. This module
has only the tables that are converted before they are used. `default.toml` describes each setting.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from homing.api.settings import ServiceSettings
from homing.core.bounds import Count, DurationMs, PositiveCount, PositiveDurationMs
from homing.core.content.locales import LAST_RESORT
from homing.core.lifecycle.receipts import LookUpPolicy
from homing.core.notifications import DEFAULT_TENANT, Mode, Priority
from homing.core.ports.stores import Retention
from homing.core.recipients.quiet_hours import DEFAULT_TIME_ZONE, QuietHours, format_time_of_day
from homing.core.retry.policy import Rule
from homing.core.retry.presets import PRIORITY
from homing.core.routing.delivery_modes import MODE_INFO, SYNCHRONOUS_TYPES
from homing.core.routing.receipt_health import ReceiptHealthPolicy
from homing.core.send_request import SendLimits
from homing.dashboard.settings import DashboardSettings
from homing.engine.settings import (
    STORE_TIMEOUT_MS,
    AlertThresholds,
    LaneSlots,
    ProcessSettings,
    SearchSettings,
    WorkerSettings,
)
from homing.net.settings import HttpSettings
from homing.telemetry.settings import LogSettings, MetricsSettings, TracingSettings


class RateSettings(Struct, frozen=True, kw_only=True):
    """The rate limit of one tenant. `most` = 0 means that it has no limit."""

    most: Count
    per_ms: PositiveDurationMs = 3_600_000
    burst: Count = 0


class PaceSettings(Struct, frozen=True, kw_only=True):
    """A rate limit with its exceptions. `most` = 0 means no limit."""

    most: Count = 0
    per_ms: PositiveDurationMs
    burst: Count = 0
    exempt_priorities: tuple[str, ...] = ()
    of: dict[str, RateSettings] = field(default_factory=dict)
    """Tenant → its own limit."""


class LimitSettings(SendLimits, frozen=True, kw_only=True):
    """The limits of a send request, and the rate limits of recipients and tenants."""

    recipient: PaceSettings = PaceSettings(per_ms=3_600_000, exempt_priorities=(Priority.CRITICAL.value,))
    tenant: PaceSettings = PaceSettings(per_ms=1_000)


class QuietHourSettings(Struct, frozen=True, kw_only=True):
    """The default quiet hours and the notifications that ignore them. Equal times mean no quiet hours."""

    start: str = format_time_of_day(QuietHours().window.start_ms)
    end: str = format_time_of_day(QuietHours().window.end_ms)
    time_zone: str = DEFAULT_TIME_ZONE
    exempt_priorities: tuple[str, ...] = tuple(one.value for one in QuietHours().exempt_priorities)
    exempt_categories: tuple[str, ...] = ()
    exempt_types: tuple[str, ...] = ()


class TemplateSettings(Struct, frozen=True, kw_only=True):
    """The folder of the templates, and their locales."""

    folder: str = ""
    locales: tuple[str, ...] = ()
    default_locale: str = LAST_RESORT
    unmatched_locale: Literal["preset", "default", "reject"] = "preset"
    tenant_locales: dict[str, str] = field(default_factory=dict)


class UnsubscribeSettings(Struct, frozen=True, kw_only=True):
    """The links in emails that unsubscribe from a category."""

    enabled: bool = False
    exempt_categories: tuple[str, ...] = ()
    secret: str = ""


class ServiceTable(ServiceSettings, frozen=True, kw_only=True):
    """The service's own settings, and those of the processes that serve it."""

    listen: str = "127.0.0.1:8080"
    workers: PositiveCount = 1
    key_file: str = ""
    jwt: tuple[dict[str, Any], ...] = ()


class QueueNames(Struct, frozen=True, kw_only=True):
    """Names of the queues that callers see, by mode."""

    priority: str = MODE_INFO[Mode.PRIORITY].queue_name
    standard: str = MODE_INFO[Mode.STANDARD].queue_name
    bulk: str = MODE_INFO[Mode.BULK].queue_name


class Settings(Struct, frozen=True, kw_only=True):
    """All settings. `default.toml` describes each key."""

    store: str = "homing.db"
    tenant: Annotated[str, Meta(min_length=1, extra={"form": "a name"})] = DEFAULT_TENANT
    preset: str = PRIORITY.name
    spool: str = ""
    store_timeout_ms: PositiveDurationMs = STORE_TIMEOUT_MS
    worker_name: str = ""
    synchronous_types: tuple[str, ...] = SYNCHRONOUS_TYPES
    default_channel: str = ""
    slots: LaneSlots = LaneSlots()
    worker: WorkerSettings = WorkerSettings()
    process: ProcessSettings = ProcessSettings()
    limits: LimitSettings = LimitSettings()
    quiet_hours: QuietHourSettings = QuietHourSettings()
    retention: Retention = Retention()
    thresholds: AlertThresholds = AlertThresholds()
    search: SearchSettings = SearchSettings()
    look_ups: LookUpPolicy = LookUpPolicy()
    receipts: ReceiptHealthPolicy = ReceiptHealthPolicy()
    http: HttpSettings = HttpSettings()
    templates: TemplateSettings = TemplateSettings()
    unsubscribe: UnsubscribeSettings = UnsubscribeSettings()
    service: ServiceTable = ServiceTable()
    dashboard: DashboardSettings = DashboardSettings()
    metrics: MetricsSettings = MetricsSettings()
    tracing: TracingSettings = TracingSettings()
    log: LogSettings = LogSettings()
    queue_names: QueueNames = QueueNames()
    dedup_windows_ms: dict[str, DurationMs] = field(default_factory=dict)
    routes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    providers: dict[str, dict[str, Any]] = field(default_factory=dict)
    sinks: dict[str, dict[str, Any]] = field(
        default_factory=lambda: {"log": {"kind": "log", "events": ["NotificationFailed", "Alert"]}}
    )
    timers: dict[str, str | dict[str, Any]] = field(default_factory=dict)
    bridges: dict[str, dict[str, Any]] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
