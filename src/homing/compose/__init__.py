"""Builds the objects of an engine or service from settings. Only this package names concrete classes."""

from __future__ import annotations

from homing.compose.engine import engine_settings, pace, parts, quiet_hours
from homing.compose.observing import Watchers, endpoint, log_to_stderr, metrics, tracing, watchers
from homing.compose.providers import (
    LISTED_KEYS,
    Given,
    Sinks,
    Subscribed,
    callback_sink,
    configured_sinks,
    list_provider,
    roster,
)
from homing.compose.stores import copying, store
from homing.compose.templates import (
    check_templates,
    listed_templates,
    locales,
    send_limits,
    templates,
    tenant_templates,
)

__all__ = (
    "LISTED_KEYS",
    "Given",
    "Sinks",
    "Subscribed",
    "Watchers",
    "callback_sink",
    "check_templates",
    "configured_sinks",
    "copying",
    "endpoint",
    "engine_settings",
    "list_provider",
    "listed_templates",
    "locales",
    "log_to_stderr",
    "metrics",
    "pace",
    "parts",
    "quiet_hours",
    "roster",
    "send_limits",
    "store",
    "templates",
    "tenant_templates",
    "tracing",
    "watchers",
)
