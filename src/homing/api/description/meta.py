"""Routes about the service itself: the OpenAPI document, the docs page, health, readiness and metrics."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

import msgspec

from homing.api.description import docs_page
from homing.api.description.openapi import build_openapi
from homing.api.http.bodies import ApiError, ApiResponse
from homing.api.http.errors import ERROR_CODES
from homing.api.http.routing import Routes
from homing.api.service import ApiCall
from homing.core.access.scopes import Scope
from homing.core.ports.observers import Readiness
from homing.core.version import __version__

routes = Routes("Service", prefix="")


_PAGE_HEADERS = {"Content-Security-Policy": docs_page.CONTENT_SECURITY_POLICY}


@routes.get("/api/v1/openapi.json")
async def get_openapi(call: ApiCall) -> ApiResponse[dict[str, Any]]:
    """Retrieve this reference as an OpenAPI 3.1 document."""
    return ApiResponse(_openapi(call.service.settings.public_url), content_type="application/json")  # type: ignore[arg-type]


@routes.get("/healthz", answer_type="text/plain")
async def get_health(call: ApiCall) -> ApiResponse[bytes]:
    """Liveness check: 200 while the process runs."""
    return ApiResponse(b"ok\n", content_type="text/plain; charset=utf-8")


@routes.get("/readyz", answers={503: Readiness})
async def get_readiness(call: ApiCall) -> ApiResponse[Readiness]:
    """Readiness check: 200 if this process can do its work now, otherwise 503. Queries the store."""
    found = await call.service.engine.readiness()
    return ApiResponse(found, 200 if found.ready else 503)


@routes.get("/metrics", scope=Scope.ADMIN, errors=("NOT_FOUND",), answer_type="text/plain")
async def get_metrics(call: ApiCall) -> ApiResponse[bytes]:
    """Retrieve this process's metrics in the Prometheus format."""
    if call.service.metrics is None:
        raise ApiError(
            "NOT_FOUND", "metrics are not enabled; install them with pip install 'homing[metrics]'"
        )
    body, content_type = await call.service.metrics()
    return ApiResponse(body, content_type=content_type)


@routes.get("/docs", hidden=True)
async def get_docs(call: ApiCall) -> ApiResponse[bytes]:
    """Show this reference as an HTML page."""
    body = _page(call.service.settings.public_url)
    return ApiResponse(body, headers=_PAGE_HEADERS, content_type="text/html; charset=utf-8")


@routes.get("/docs/docs.css", hidden=True)
async def get_docs_style(call: ApiCall) -> ApiResponse[bytes]:
    """Retrieve the style sheet of the docs page."""
    return ApiResponse(_file("docs.css"), headers=_PAGE_HEADERS, content_type="text/css; charset=utf-8")


@routes.get("/docs/docs.js", hidden=True)
async def get_docs_script(call: ApiCall) -> ApiResponse[bytes]:
    """Retrieve the script of the docs page."""
    return ApiResponse(_file("docs.js"), headers=_PAGE_HEADERS, content_type="text/javascript; charset=utf-8")


@cache
def _openapi(server: str) -> bytes:
    return msgspec.json.encode(_document(server))


@cache
def _page(server: str) -> bytes:
    return docs_page.build_docs_page(_document(server), ERROR_CODES)


def _document(server: str) -> dict[str, Any]:
    from homing.api.all_routes import all_routes

    return build_openapi(all_routes(), version=__version__, server=server)


@cache
def _file(name: str) -> bytes:
    return resources.files("homing.api.description").joinpath("static", name).read_bytes()
