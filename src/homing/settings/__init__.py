"""Reads the settings into one frozen struct. Later sources override earlier ones.

The order is default.toml, homing.toml, HOMING_* environment variables, flags.
"""

from __future__ import annotations

from homing.settings.loading import (
    CONFIG_FILE,
    build_rule,
    default_settings_text,
    load_settings,
)
from homing.settings.tables import (
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
    "build_rule",
    "default_settings_text",
    "load_settings",
)
