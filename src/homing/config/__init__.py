"""Settings: default.toml < homing.toml < HOMING_* < flags, merged into one frozen struct."""

from __future__ import annotations

from homing.config.loading import CONFIG_FILE, default_text, duration_ms, load, rule_from
from homing.config.tables import (
    HttpSettings,
    PaceSettings,
    RateSettings,
    ServiceTable,
    Settings,
    TracingSettings,
)

__all__ = (
    "CONFIG_FILE",
    "HttpSettings",
    "PaceSettings",
    "RateSettings",
    "ServiceTable",
    "Settings",
    "TracingSettings",
    "default_text",
    "duration_ms",
    "load",
    "rule_from",
)
