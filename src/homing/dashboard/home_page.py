"""The page at `/`: what this service is, whether it is healthy, and where to go next.

Browsers get HTML. Programs that do not ask for HTML, such as curl, get the same as text of 80 columns.
"""

from __future__ import annotations

import re

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from homing.core.ports.observers import ReportsReadiness
from homing.core.ports.runtime import Clock
from homing.core.times import moment
from homing.dashboard.rendering import render

_HOST = re.compile(r"[A-Za-z0-9._-]+(:\d{1,5})?|\[[0-9A-Fa-f:.]+\](:\d{1,5})?")

_NO_HOST = "127.0.0.1:8080"
"""Address in the examples if the request does not name a valid one."""

_HEALTHY = ("good", "Healthy", "The store answers, and nothing in this process is stuck.")

_NOT_READY = ("bad", "Not ready", "A part of this process does not work at the moment.")


class HomePage:
    """Creates the page from the readiness of the process that answers."""

    def __init__(self, engine: ReportsReadiness, clock: Clock, *, version: str, public_url: str = "") -> None:
        self._engine = engine
        self._clock = clock
        self._version = version
        self._public_url = public_url.rstrip("/")
        self.has_dashboard = False
        """True if people can sign in at this address."""

    async def respond(self, request: Request) -> Response:
        """Returns the page, with the same status as `/readyz`: 200 if the process is ready, otherwise 503."""
        found = await self._engine.readiness()
        kind, state, meaning = _HEALTHY if found.ready else _NOT_READY
        values = {
            "version": self._version,
            "url": self._url(request),
            "kind": kind,
            "state": state,
            "meaning": meaning,
            "store": found.store,
            "store_kind": "good" if found.store == "ok" else "bad",
            "worker": found.worker,
            "worker_kind": "good" if found.worker == "ok" else "bad",
            "checked": f"{moment(self._clock.now_ms()):%Y-%m-%d %H:%M:%S} UTC",
        }
        headers = {"Vary": "Accept"}
        status = 200 if found.ready else 503
        if "text/html" in request.headers.get("accept", ""):
            page = render("home.html", **values, dashboard=self.has_dashboard, base="ui/")
            return HTMLResponse(page, status, headers)
        return PlainTextResponse(render("home.txt", **values) + "\n", status, headers)

    def _url(self, request: Request) -> str:
        """Returns the address of the service, as the caller knows it."""
        if self._public_url:
            return self._public_url
        host = request.headers.get("host", "")
        return f"{request.scope.get('scheme', 'http')}://{host if _HOST.fullmatch(host) else _NO_HOST}"
