"""Reads the settings into one frozen struct. Later sources override earlier ones.

The order is default.toml, homing.toml, HOMING_* environment variables, flags.
"""

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
