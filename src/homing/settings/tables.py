"""The types of the tables in the settings file. `default.toml` describes each key."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field

from homing.core.retry.policy import Rule


class SlotSettings(Struct, frozen=True, forbid_unknown_fields=True):
    priority: int
    standard: int
    bulk: int


class WorkerTable(Struct, frozen=True, forbid_unknown_fields=True):
    poll_ms: int
    lease_ms: int


class RateSettings(Struct, frozen=True, forbid_unknown_fields=True):
    most: int
    per_ms: int = 3_600_000
    burst: int = 0


class PaceSettings(Struct, frozen=True, forbid_unknown_fields=True):
    most: int
    per_ms: int
    burst: int
    exempt_priorities: tuple[str, ...]
    of: dict[str, RateSettings] = field(default_factory=dict)


class QuietHourSettings(Struct, frozen=True, forbid_unknown_fields=True):
    start: str
    end: str
    time_zone: str
    exempt_priorities: tuple[str, ...]
    exempt_categories: tuple[str, ...]
    exempt_types: tuple[str, ...]


class LimitSettings(Struct, frozen=True, forbid_unknown_fields=True):
    content_bytes: int
    attachments_bytes: int
    metadata_bytes: int
    fan_out: int
    recipient: PaceSettings
    tenant: PaceSettings


class RetentionSettings(Struct, frozen=True, forbid_unknown_fields=True):
    delivered_ms: int
    sent_ms: int
    others_ms: int
    keys_ms: int
    outbox_ms: int


class ThresholdSettings(Struct, frozen=True, forbid_unknown_fields=True):
    retry_backlog: int
    failure_rate: float
    failure_rate_of: int
    oldest_retry_ms: int
    dead_letters_growing: int


class LookUpSettings(Struct, frozen=True, forbid_unknown_fields=True):
    doubt_after_ms: int
    silent_after_ms: int
    until_ms: int
    per_round: int


class ReceiptSettings(Struct, frozen=True, forbid_unknown_fields=True):
    bad_share: float
    bad_of: int
    window_ms: int
    stopped_after_ms: int
    stopped_of: int
    usual_share: float
    pause_ms: int


class HttpSettings(Struct, frozen=True, forbid_unknown_fields=True):
    connect_timeout_ms: int
    max_connections: int
    max_host_connections: int
    ca_file: str
    allow_networks: tuple[str, ...]
    allow_http: bool
    allow_ports: tuple[int, ...]


class TemplateSettings(Struct, frozen=True, forbid_unknown_fields=True):
    folder: str
    locales: tuple[str, ...]
    default_locale: str
    unmatched_locale: Literal["preset", "default", "reject"]
    tenant_locales: dict[str, str]


class UnsubscribeSettings(Struct, frozen=True, forbid_unknown_fields=True):
    enabled: bool
    exempt_categories: tuple[str, ...]
    secret: str


class MetricsSettings(Struct, frozen=True, forbid_unknown_fields=True):
    listen: str
    tenants: int


class ServiceTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    listen: str
    workers: int
    public_url: str
    key_file: str
    body_bytes: int
    batch_bytes: int
    buffer_bytes: int
    head_ms: int
    read_ms: int
    answer_ms: int
    keep_alive_ms: int
    max_requests: int
    max_connections: int
    rate_per_second: float
    rate_burst: int
    jwt: tuple[dict[str, Any], ...] = ()


class TracingSettings(Struct, frozen=True, forbid_unknown_fields=True):
    endpoint: str
    service_name: str
    share: float


class LogSettings(Struct, frozen=True, forbid_unknown_fields=True):
    format: Literal["text", "json"]
    level: Literal["debug", "info", "warning", "error"]


class QueueNames(Struct, frozen=True, forbid_unknown_fields=True):
    priority: str
    standard: str
    bulk: str


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings. `default.toml` describes each key."""

    store: str
    tenant: str
    preset: str
    spool: str
    worker_name: str
    synchronous_types: tuple[str, ...]
    slots: SlotSettings
    worker: WorkerTable
    limits: LimitSettings
    quiet_hours: QuietHourSettings
    retention: RetentionSettings
    thresholds: ThresholdSettings
    look_ups: LookUpSettings
    receipts: ReceiptSettings
    http: HttpSettings
    templates: TemplateSettings
    unsubscribe: UnsubscribeSettings
    service: ServiceTable
    metrics: MetricsSettings
    tracing: TracingSettings
    log: LogSettings
    queue_names: QueueNames
    dedup_windows_ms: dict[str, int] = field(default_factory=dict)
    routes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    providers: dict[str, dict[str, Any]] = field(default_factory=dict)
    sinks: dict[str, dict[str, Any]] = field(default_factory=dict)
    timers: dict[str, str | dict[str, Any]] = field(default_factory=dict)
    bridges: dict[str, dict[str, Any]] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()


TABLES: dict[str, type[Struct]] = {
    kind.__name__: kind
    for kind in (
        SlotSettings,
        WorkerTable,
        LimitSettings,
        QuietHourSettings,
        RetentionSettings,
        ThresholdSettings,
        LookUpSettings,
        ReceiptSettings,
        HttpSettings,
        TemplateSettings,
        UnsubscribeSettings,
        ServiceTable,
        MetricsSettings,
        TracingSettings,
        LogSettings,
        QueueNames,
    )
}
