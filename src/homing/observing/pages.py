"""The pages of a worker's HTTP endpoint: /metrics, /healthz and /readyz."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Protocol

import msgspec

from homing.core.observing import Readiness
from homing.observing.endpoint import Answer, Page
from homing.observing.metrics import CONTENT_TYPE, Metrics


class Asked(Protocol):
    """The part of the engine that the pages use."""

    async def readiness(self) -> Readiness: ...


def pages(metrics: Metrics, engine: Asked) -> Mapping[str, Page]:
    """Returns the pages by path."""

    async def show_metrics() -> Answer:
        return Answer(await metrics.page(), CONTENT_TYPE)

    async def show_health() -> Answer:
        """Liveness check: 200 while the process runs."""
        return Answer(b"ok\n")

    async def show_readiness() -> Answer:
        found = await engine.readiness()
        status = HTTPStatus.OK if found.ready else HTTPStatus.SERVICE_UNAVAILABLE
        return Answer(msgspec.json.encode(found) + b"\n", "application/json", status)

    return {"/metrics": show_metrics, "/healthz": show_health, "/readyz": show_readiness}
