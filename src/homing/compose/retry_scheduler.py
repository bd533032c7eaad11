"""Adds what `homing bridge rabbitmq` needs to the settings: the bridge, its provider and its sink."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from homing.compose.factories import check_installed, find_options, import_object
from homing.settings import Settings
from homing.settings.retry_scheduler import BRIDGE, MANUAL_REVIEW_SINK


def add_retry_scheduler(settings: Settings, *, declare: bool = False) -> Settings:
    """Returns the settings with the bridge `rabbitmq`, its provider, and its sink for manual review.

    What the settings have already stays. `declare` makes the bridge create its queues.
    """
    check_installed(f"bridges.{BRIDGE}", "rabbitmq", "aio_pika", "google.protobuf")
    defaults: Any = import_object("homing.bridges.rabbitmq:DEFAULTS")
    table: dict[str, Any] = {**defaults, **settings.bridges.get(BRIDGE, {})}
    if declare:
        table["declare"] = True
    # The provider and the sink connect to the same server, under names of their own.
    shared = {"url", *find_options(import_object("homing.brokers.rabbitmq:read_server"))} - {
        "connection_name"
    }
    connection = {name: value for name, value in table.items() if name in shared}
    providers, sinks = dict(settings.providers), dict(settings.sinks)
    if not _has_kind(providers, "rabbitmq"):
        providers[BRIDGE] = connection
    if not _has_kind(sinks, "manual_review") and (queue := table["manual_review_queue"]):
        sinks[MANUAL_REVIEW_SINK] = {"kind": "manual_review", "queue": queue, **connection}
    return replace(settings, bridges={**settings.bridges, BRIDGE: table}, providers=providers, sinks=sinks)


def _has_kind(tables: Mapping[str, Mapping[str, Any]], kind: str) -> bool:
    return any(table.get("kind", name) == kind for name, table in tables.items())
