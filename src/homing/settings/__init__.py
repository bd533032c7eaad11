"""Reads the settings into one frozen struct. Later sources override earlier ones.

The order is defaults, homing.toml, HOMING_* environment variables, flags. A setting's default and bounds are
in the struct of the part that uses it. This package loads, merges and converts.
"""

from __future__ import annotations

from homing.settings.conversion import read_setting
from homing.settings.loading import CONFIG_FILE, default_settings_text, load_settings
from homing.settings.rules import build_rule
from homing.settings.tables import PaceSettings, RateSettings, Settings

__all__ = (
    "CONFIG_FILE",
    "PaceSettings",
    "RateSettings",
    "Settings",
    "build_rule",
    "default_settings_text",
    "load_settings",
    "read_setting",
)
