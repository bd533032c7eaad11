"""Builds the observers of an engine: metrics with their endpoint, tracing, and logging."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from homing.compose.engine import build_engine_settings
from homing.compose.factories import check_installed, find_missing, import_object
from homing.core.errors import ConfigError
from homing.engine.engine import Engine
from homing.engine.system_runtime import SystemClock
from homing.http_server.listen_address import parse_listen_address
from homing.settings import Settings

if TYPE_CHECKING:
    from homing.telemetry.http_endpoint import MetricsEndpoint
    from homing.telemetry.metrics import Metrics
    from homing.telemetry.tracing import Tracing


class ConfiguredObservers(NamedTuple):
    """Observers of an engine and its service. A field is None if the settings do not enable it."""

    counted: Metrics | None
    traced: Tracing | None

    @property
    def all(self) -> list[Metrics | Tracing]:
        """The observers that are enabled."""
        return [one for one in self if one is not None]


def build_observers(settings: Settings, *, count: bool = False) -> ConfiguredObservers:
    """Builds the observers that the settings enable.

    If `count` is True, metrics are built even if the settings have no address to serve them on, provided that
    prometheus-client is installed.
    """
    wanted = settings.metrics.listen or (count and not find_missing("prometheus_client"))
    return ConfiguredObservers(build_metrics(settings) if wanted else None, build_tracing(settings))


def build_metrics(settings: Settings) -> Metrics:
    """Builds the observer that keeps Prometheus metrics. Raises `ConfigError` if its library is missing."""
    check_installed("metrics", "metrics", "prometheus_client")
    made: Metrics = import_object("homing.telemetry.metrics:Metrics")(
        tenants=settings.metrics.tenants,
        queue_names=build_engine_settings(settings).queue_names,
        service=settings.tracing.service_name,
    )
    return made


def build_endpoint(settings: Settings, counted: Metrics, engine: Engine) -> MetricsEndpoint:
    """Builds the endpoint for /metrics, /healthz and /readyz, and starts observing the engine."""
    check_installed("metrics.listen", "metrics", "uvicorn", "httptools")
    counted.watch(engine)
    listen = parse_listen_address(settings.metrics.listen, "metrics.listen")
    pages = import_object("homing.telemetry.http_endpoint:build_pages")(counted, engine)
    made: MetricsEndpoint = import_object("homing.telemetry.http_endpoint:MetricsEndpoint")(listen, pages)
    return made


def build_tracing(settings: Settings) -> Tracing | None:
    """Builds the observer that sends traces. Returns None if the settings name no endpoint for traces."""
    own = settings.tracing
    if not own.endpoint:
        return None
    _check_tracing(own.endpoint)
    made: Tracing = import_object("homing.telemetry.tracing:Tracing")(
        import_object("homing.telemetry.tracing:create_otlp_processor")(own.endpoint),
        clock=SystemClock(),
        service_name=own.service_name,
        share=own.share,
    )
    return made


def check_telemetry(settings: Settings) -> None:
    """Raises `ConfigError` if a setting of the metrics or of tracing is wrong."""
    if settings.metrics.listen:
        check_installed("metrics", "metrics", "prometheus_client", "uvicorn", "httptools")
        parse_listen_address(settings.metrics.listen, "metrics.listen")
    if settings.tracing.endpoint:
        _check_tracing(settings.tracing.endpoint)


def _check_tracing(endpoint: str) -> None:
    check_installed("tracing", "tracing", "opentelemetry.sdk")
    if not endpoint.startswith(("http://", "https://")):
        raise ConfigError(
            "tracing.endpoint", f"is {endpoint!r}; it must be a URL like http://HOST:4318/v1/traces"
        )


def log_to_stderr(format: str, level: str, service: str = "") -> None:
    """Makes this process log to stderr, with recipients and secrets redacted.

    In JSON, each line has the name of the service, if there is one.
    """
    import_object("homing.telemetry.logs:configure")(format, level, service=service)
