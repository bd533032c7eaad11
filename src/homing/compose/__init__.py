"""Builds the objects of an engine or service from settings.

It names the concrete classes of stores, providers and sinks, so that the engine does not have to.
"""

from __future__ import annotations

from homing.compose.engine import (
    build_engine_settings,
    build_parts,
    build_quiet_hours,
    build_rate_limit_rule,
    check_settings,
)
from homing.compose.providers import (
    LISTED_KEYS,
    ProviderArgument,
    Sinks,
    build_callback_sink,
    build_roster,
    build_sinks,
    list_provider,
)
from homing.compose.reload import ReloadablePart, ReloadResult, SettingsReloader
from homing.compose.retry_scheduler import add_retry_scheduler
from homing.compose.stores import build_backup, build_copying, build_store
from homing.compose.telemetry import (
    ConfiguredObservers,
    build_endpoint,
    build_metrics,
    build_observers,
    build_tracing,
    check_telemetry,
    log_to_stderr,
)
from homing.compose.templates import (
    build_folder_renderer,
    build_locale_policy,
    build_renderer,
    check_templates,
    listed_templates,
)
from homing.compose.timers_and_bridges import TimerArgument, build_bridges, build_timers
from homing.core.ports.plug_ins import SubscribedSink

__all__ = (
    "LISTED_KEYS",
    "ConfiguredObservers",
    "ProviderArgument",
    "ReloadResult",
    "ReloadablePart",
    "SettingsReloader",
    "Sinks",
    "SubscribedSink",
    "TimerArgument",
    "add_retry_scheduler",
    "build_backup",
    "build_bridges",
    "build_callback_sink",
    "build_copying",
    "build_endpoint",
    "build_engine_settings",
    "build_folder_renderer",
    "build_locale_policy",
    "build_metrics",
    "build_observers",
    "build_parts",
    "build_quiet_hours",
    "build_rate_limit_rule",
    "build_renderer",
    "build_roster",
    "build_sinks",
    "build_store",
    "build_timers",
    "build_tracing",
    "check_settings",
    "check_telemetry",
    "check_templates",
    "list_provider",
    "listed_templates",
    "log_to_stderr",
)
