"""Settings of metrics, traces and logs. Settings can be loaded without the libraries of these."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from homing.core.bounds import Count, Fraction


class MetricsSettings(Struct, frozen=True, kw_only=True):
    """Settings of the metrics and their endpoint."""

    listen: str = ""
    """Address of the endpoint. If empty, there is none."""
    tenants: Count = 50
    """Maximum number of tenants with time series of their own."""


class TracingSettings(Struct, frozen=True, kw_only=True):
    """Settings of traces."""

    endpoint: str = ""
    """URL that receives the traces. If empty, there are none."""
    service_name: str = "homing"
    share: Fraction = 1.0
    """Fraction of notifications that is traced."""


class LogSettings(Struct, frozen=True, kw_only=True):
    """Settings of the log lines of the commands."""

    format: Literal["text", "json"] = "text"
    level: Literal["debug", "info", "warning", "error"] = "warning"
