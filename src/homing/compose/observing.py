"""Who watches an engine: metrics, their endpoint, log lines."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, NamedTuple

from homing.compose.engine import engine_settings
from homing.config import Settings
from homing.core.errors import ConfigError
from homing.engine.clock import SystemClock
from homing.engine.homing import Engine
from homing.making import load

if TYPE_CHECKING:
    from homing.observing.endpoint import Endpoint
    from homing.observing.metrics import Metrics
    from homing.observing.tracing import Tracing


class Watchers(NamedTuple):
    """Who watches an engine and its service."""

    counted: Metrics | None
    traced: Tracing | None

    @property
    def all(self) -> list[Metrics | Tracing]:
        return [one for one in self if one is not None]


def watchers(settings: Settings, *, count: bool = False) -> Watchers:
    """Those that the settings ask for. `count`: metrics also without an address, if they are installed."""
    wanted = settings.metrics.listen or (count and importlib.util.find_spec("prometheus_client"))
    return Watchers(metrics(settings) if wanted else None, tracing(settings))


def metrics(settings: Settings) -> Metrics:
    """An observer that counts for Prometheus."""
    if importlib.util.find_spec("prometheus_client") is None:
        raise ConfigError(
            "metrics", "needs prometheus-client, which is missing: pip install 'homing[metrics]'"
        )
    made: Metrics = load("homing.observing.metrics:Metrics")(
        tenants=settings.metrics.tenants, queue_names=engine_settings(settings).queue_names
    )
    return made


def endpoint(settings: Settings, counted: Metrics, engine: Engine) -> Endpoint:
    """Where /metrics, /healthz and /readyz of an engine are served; counts what it is told from now on."""
    counted.watch(engine)
    listen = load("homing.observing.endpoint:listen_at")(settings.metrics.listen, "metrics.listen")
    pages = load("homing.observing.pages:pages")(counted, engine)
    made: Endpoint = load("homing.observing.endpoint:Endpoint")(listen, pages)
    return made


def tracing(settings: Settings) -> Tracing | None:
    """An observer that sends traces, where the settings say to where."""
    own = settings.tracing
    if not own.endpoint:
        return None
    if importlib.util.find_spec("opentelemetry.sdk") is None:
        raise ConfigError("tracing", "needs OpenTelemetry, which is missing: pip install 'homing[tracing]'")
    if not own.endpoint.startswith(("http://", "https://")):
        raise ConfigError("tracing.endpoint", f"is {own.endpoint!r}; give http://HOST:4318/v1/traces")
    made: Tracing = load("homing.observing.tracing:Tracing")(
        load("homing.observing.tracing:otlp")(own.endpoint),
        clock=SystemClock(),
        service_name=own.service_name,
        share=own.share,
    )
    return made


def log_to_stderr(format: str, level: str) -> None:
    """Log lines of this process, redacted."""
    load("homing.observing.logs:configure")(format, level)
