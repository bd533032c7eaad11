"""Routes about the service itself: the OpenAPI document, the docs page, health, readiness and metrics."""

from __future__ import annotations

from functools import cache
from importlib import metadata, resources
from typing import Any

import msgspec

from homing.api import docs_page
from homing.api.answers import Answer, ApiError
from homing.api.errors import CODES
from homing.api.openapi import document
from homing.api.routing import Routes
from homing.api.service import Call
from homing.core.access import Scope
from homing.core.observing import Readiness

routes = Routes("Service", prefix="")

_PAGE_HEADERS = {"Content-Security-Policy": docs_page.POLICY}


@routes.get("/api/v1/openapi.json")
async def get_openapi(call: Call) -> Answer[dict[str, Any]]:
    """Retrieve this reference as an OpenAPI 3.1 document."""
    return Answer(_openapi(call.service.settings.public_url), content_type="application/json")  # type: ignore[arg-type]


@routes.get("/healthz", answer_type="text/plain")
async def get_health(call: Call) -> Answer[bytes]:
    """Liveness check: 200 while the process runs."""
    return Answer(b"ok\n", content_type="text/plain; charset=utf-8")


@routes.get("/readyz", answers={503: Readiness})
async def get_readiness(call: Call) -> Answer[Readiness]:
    """Readiness check: 200 if this process can do its work now, otherwise 503. Queries the store."""
    found = await call.service.engine.readiness()
    return Answer(found, 200 if found.ready else 503)


@routes.get("/metrics", scope=Scope.ADMIN, errors=("NOT_FOUND",), answer_type="text/plain")
async def get_metrics(call: Call) -> Answer[bytes]:
    """Retrieve this process's metrics in the Prometheus format."""
    if call.service.metrics is None:
        raise ApiError(
            "NOT_FOUND", "metrics are not enabled; install them with pip install 'homing[metrics]'"
        )
    body, content_type = await call.service.metrics()
    return Answer(body, content_type=content_type)


@routes.get("/docs", hidden=True)
async def get_docs(call: Call) -> Answer[bytes]:
    """Show this reference as an HTML page."""
    body = _page(call.service.settings.public_url)
    return Answer(body, headers=_PAGE_HEADERS, content_type="text/html; charset=utf-8")


@routes.get("/docs/docs.css", hidden=True)
async def get_docs_style(call: Call) -> Answer[bytes]:
    """Retrieve the style sheet of the docs page."""
    return Answer(_file("docs.css"), headers=_PAGE_HEADERS, content_type="text/css; charset=utf-8")


@routes.get("/docs/docs.js", hidden=True)
async def get_docs_script(call: Call) -> Answer[bytes]:
    """Retrieve the script of the docs page."""
    return Answer(_file("docs.js"), headers=_PAGE_HEADERS, content_type="text/javascript; charset=utf-8")


@cache
def _openapi(server: str) -> bytes:
    return msgspec.json.encode(_document(server))


@cache
def _page(server: str) -> bytes:
    return docs_page.page(_document(server), CODES)


def _document(server: str) -> dict[str, Any]:
    from homing.api.all_routes import all_routes

    try:
        version = metadata.version("homing")
    except metadata.PackageNotFoundError:
        version = "not installed"
    return document(all_routes(), version=version, server=server)


@cache
def _file(name: str) -> bytes:
    return resources.files("homing.api").joinpath("static", name).read_bytes()
