"""Builds the observers of an engine: metrics with their endpoint, tracing, and logging."""

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
    """Observers of an engine and its service. A field is None if the settings do not enable it."""

    counted: Metrics | None
    traced: Tracing | None

    @property
    def all(self) -> list[Metrics | Tracing]:
        """The observers that are enabled."""
        return [one for one in self if one is not None]


def watchers(settings: Settings, *, count: bool = False) -> Watchers:
    """Builds the observers that the settings enable.

    With `count`, metrics are also built without an address to listen on, if prometheus-client is installed.
    """
    wanted = settings.metrics.listen or (count and importlib.util.find_spec("prometheus_client"))
    return Watchers(metrics(settings) if wanted else None, tracing(settings))


def metrics(settings: Settings) -> Metrics:
    """Builds the observer that counts for Prometheus. Raises `ConfigError` if its library is missing."""
    if importlib.util.find_spec("prometheus_client") is None:
        raise ConfigError(
            "metrics", "needs prometheus-client, which is missing: pip install 'homing[metrics]'"
        )
    made: Metrics = load("homing.observing.metrics:Metrics")(
        tenants=settings.metrics.tenants, queue_names=engine_settings(settings).queue_names
    )
    return made


def endpoint(settings: Settings, counted: Metrics, engine: Engine) -> Endpoint:
    """Builds the endpoint for /metrics, /healthz and /readyz, and starts observing the engine."""
    counted.watch(engine)
    listen = load("homing.observing.endpoint:listen_at")(settings.metrics.listen, "metrics.listen")
    pages = load("homing.observing.pages:pages")(counted, engine)
    made: Endpoint = load("homing.observing.endpoint:Endpoint")(listen, pages)
    return made


def tracing(settings: Settings) -> Tracing | None:
    """Builds the observer that sends traces. Returns None if the settings have no endpoint."""
    own = settings.tracing
    if not own.endpoint:
        return None
    if importlib.util.find_spec("opentelemetry.sdk") is None:
        raise ConfigError("tracing", "needs OpenTelemetry, which is missing: pip install 'homing[tracing]'")
    if not own.endpoint.startswith(("http://", "https://")):
        raise ConfigError(
            "tracing.endpoint", f"is {own.endpoint!r}; it must be a URL like http://HOST:4318/v1/traces"
        )
    made: Tracing = load("homing.observing.tracing:Tracing")(
        load("homing.observing.tracing:otlp")(own.endpoint),
        clock=SystemClock(),
        service_name=own.service_name,
        share=own.share,
    )
    return made


def log_to_stderr(format: str, level: str) -> None:
    """Configures the log of this process, with recipients and secrets redacted."""
    load("homing.observing.logs:configure")(format, level)
