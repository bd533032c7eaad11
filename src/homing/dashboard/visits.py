"""One request of a person who is signed in, and the tables of screens that answer it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl, urlencode

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from homing.core.access.scopes import Caller, Scope
from homing.core.durations import read_duration
from homing.core.errors import HomingError, InvalidRequest
from homing.core.ports.runtime import Clock
from homing.core.rehearsal import Rehearsal, RehearsalReport
from homing.core.times import LONGEST_MS, moment
from homing.dashboard.rendering import render
from homing.dashboard.settings import DashboardSettings
from homing.engine.access.web_sessions import WebSession
from homing.engine.engine import Engine
from homing.engine.tenant_api import TenantApi

MAX_FORM_BYTES = 65_536
"""Maximum size of a form."""

_MAX_FIELDS = 60

READERS = (Scope.READ, Scope.OPERATE)
"""Scopes of which one is needed to see notifications."""

_SAFE_PATH = re.compile(r"[a-z][A-Za-z0-9_.~%/-]{0,300}")

NOTICES = {
    "cancelled": "Cancelled. An attempt that is in flight still ends.",
    "retried": "It is due now.",
    "resent": "Resent. This is the new notification.",
    "acknowledged": "Acknowledged.",
    "rescheduled": "Rescheduled.",
    "resolved": "Resolved.",
    "moved": "Moved to the dead letters.",
    "forced": "The breaker is under manual control.",
    "released": "The breaker is under automatic control again.",
    "split": "The split is overridden for notifications accepted from now on.",
    "unsplit": "The settings decide the split again.",
    "stopping": "The job stops at its next step.",
    "resumed": "The job continues.",
    "saved": "Saved.",
    "removed": "Removed.",
    "revoked": "Revoked.",
    "disabled": "Disabled. Its keys and tokens are rejected.",
    "enabled": "Enabled.",
    "restored": "Restored as the newest version.",
    "released-events": "The parked events wait to be published again.",
    "start-an-outage": "pigeon fails for 45 seconds. Watch its breaker open, and hawk take over.",
    "send-a-flood": "400 messages at once. Watch how many wait, and how soon they are sent.",
    "kill-a-worker": "Another worker takes messages and is killed. When its leases end, they are sent.",
    "make-dead-letters": "25 messages go to mailboxes that do not exist. Find them under Dead letters.",
    "repair-the-mailboxes": "All mailboxes exist now. Open Dead letters, and resend them.",
}
"""Code in the address after an action → sentence on the page. Only known codes are shown."""

_LABELS: dict[str, str] = {
    "why": "Reason",
    "lasting": "Valid for",
    "overlap": "Old key stays valid for",
    "delay": "Due in",
    "rate": "Per second",
    "traffic": "Traffic per second",
    "statuses": "Status",
    "error_code": "Error code",
    "max_attempts": "Attempts",
    "base_ms": "First delay",
    "cap_ms": "Longest delay",
    "steps_ms": "Fixed delay",
    "scopes": "A scope",
    "jitter_ratio": "Proportional jitter",
    "jitter_ms": "Additive jitter",
    "timeout_ms": "Timeout",
    "max_age_ms": "Maximum age",
    "data": "Sample data",
    **dict.fromkeys(("email", "phone", "url", "deviceToken"), "Address"),
    **{
        name: name.capitalize()
        for name in (
            *("address", "backoff", "channel", "command", "duration", "factor", "jitter", "kind", "locale"),
            *("name", "origin", "outage", "priority", "provider", "status", "tenant", "type"),
            *("reason", "phase", "version"),
        )
    },
}
"""Name of a field → its label in a form, for messages about wrong values."""


def explain_problem(error: HomingError) -> str:
    """Returns the message of an error as a sentence. A field is named as the form names it."""
    text, field = str(error), getattr(error, "field", "")
    label = _LABELS.get(field.rpartition(".")[2], "")
    shown = f"{label} {text.removeprefix(f'{field}: ')}" if label else text[:1].upper() + text[1:]
    return shown if shown.endswith((".", "!", "?")) else f"{shown}."


TenantLimit = Callable[[str], AbstractContextManager[Any]]
"""Counts work for a tenant during a `with` block. Raises `CommandRefused` if too much of it runs already."""

DemoEvent = Callable[[], Awaitable[None]]
"""Starts something in the demo, such as an outage."""


class DashboardTools(Struct, frozen=True, kw_only=True):
    """The objects that all screens use."""

    engine: Engine
    clock: Clock
    settings: DashboardSettings
    version: str
    public_url: str = ""
    """Address of the service as people know it. Empty if it is that of the request."""
    simulate: Callable[[Rehearsal], Awaitable[RehearsalReport]] | None = None
    """Runs a simulation of an outage. None if simulations are not available."""
    draw_simulation: Callable[[RehearsalReport], str] | None = None
    """Draws the report of a simulation as SVG. None if simulations are not available."""
    simulating: TenantLimit = nullcontext
    """Limits how many simulations of a tenant run at the same time."""
    rendering: TenantLimit = nullcontext
    """Limits how many previews and checks of templates of a tenant run at the same time."""
    demo: Mapping[str, DemoEvent] | None = None
    """Name of each event that the demo can start → function that starts it. None if this is no demo."""


class Visit:
    """One request of a person who is signed in."""

    def __init__(self, tools: DashboardTools, request: Request, session: WebSession) -> None:
        self.tools = tools
        self.request = request
        self.session = session
        engine, tenant = tools.engine, session.caller.tenant
        self.engine: Engine = engine
        self.api: TenantApi = engine if tenant == engine.tenant else engine.of(tenant)

    @property
    def caller(self) -> Caller:
        """The person, with tenant and scopes."""
        return self.session.caller

    @property
    def query(self) -> Mapping[str, str]:
        """The values in the address."""
        return self.request.query_params

    @property
    def now(self) -> datetime:
        """The time of this process."""
        return moment(self.tools.clock.now_ms())

    def may(self, scope: Scope) -> bool:
        """Returns True if the person has this scope."""
        return self.caller.may(scope)

    async def note(self, action: str, target: str = "", **detail: Any) -> None:
        """Records an action in the audit trail before it happens. Raises if the entry cannot be written."""
        await self.engine.audit.note(self.caller, action, target, {**detail, "from": "dashboard"})

    def page(self, template: str, /, *, status: int = 200, **values: Any) -> Response:
        """Returns a page with the menu around it."""
        return HTMLResponse(self.html(template, **values), status)

    def html(self, template: str, /, **values: Any) -> str:
        """Renders a template with the values that every page has."""
        return render(
            template,
            **{
                "visit": self,
                "now": self.now,
                "to": self.to,
                "path": self.request.url.path,
                "may": {scope.value: self.may(scope) for scope in Scope},
                "form_token": self.session.form_token,
                "notice": NOTICES.get(self.query.get("done", ""), ""),
                "settings": self.tools.settings,
                "version": self.tools.version,
                "demo": self.tools.demo,
                **values,
            },
        )

    def to(self, path: str, **query: object) -> str:
        """Returns the relative address of a page, so that pages work below any prefix of a proxy."""
        given = urlencode({name: value for name, value in query.items() if value not in (None, "")})
        return "../" * self.depth + path + (f"?{given}" if given else "")

    @property
    def depth(self) -> int:
        """Number of folders between the page and the folder of all pages."""
        return self.request.url.path.count("/") - 2

    def live_url(self, name: str, **query: object) -> str:
        """Returns the relative address of the stream that updates a part of this page."""
        return self.to(f"live/{name}", **query, at=self.request.url.path.removeprefix("/ui/"))

    def go(self, path: str, **query: object) -> Response:
        """Returns a redirect to a page after an action."""
        return RedirectResponse(self.to(path, **query), 303)


Handler = Callable[..., Awaitable[Any]]


class ScreenRoute(Struct, frozen=True, kw_only=True):
    """A screen, an action or a live part of a screen."""

    path: str
    method: str
    handler: Handler
    scopes: Sequence[Scope]
    """Scopes of which one is needed."""


class Screens:
    """The routes of one module."""

    def __init__(self) -> None:
        self.routes: list[ScreenRoute] = []
        self.live_parts: dict[str, ScreenRoute] = {}
        """Name → the part of a screen that is updated while it is open."""

    def get(self, path: str, *scopes: Scope) -> Callable[[Handler], Handler]:
        """Adds a screen. One of the scopes is needed; by default, one that may read."""
        return self._add("GET", path, scopes or READERS)

    def post(self, path: str, *scopes: Scope) -> Callable[[Handler], Handler]:
        """Adds an action. One of the scopes is needed. The handler also gets the fields of the form."""
        assert scopes, "every action needs a scope"
        return self._add("POST", path, scopes)

    def live(self, name: str, *scopes: Scope) -> Callable[[Handler], Handler]:
        """Adds a live part: a function of a `Visit` that returns HTML. All tabs with equal views share it."""

        def add(handler: Handler) -> Handler:
            self.live_parts[name] = ScreenRoute(
                path=name, method="GET", handler=handler, scopes=scopes or READERS
            )
            return handler

        return add

    def _add(self, method: str, path: str, scopes: Sequence[Scope]) -> Callable[[Handler], Handler]:
        def add(handler: Handler) -> Handler:
            self.routes.append(ScreenRoute(path=f"/ui/{path}", method=method, handler=handler, scopes=scopes))
            return handler

        return add


def own_page(path: str, query: str = "") -> str:
    """Returns the address of a page, relative to the folder of all pages. Empty if it leads elsewhere.

    The page for signing in is none to return to.
    """
    if not _SAFE_PATH.fullmatch(path) or ".." in path or path.startswith("sign-in"):
        return ""
    return f"{path}?{query}" if query and query.isascii() and query.isprintable() else path


def read_span(form: Mapping[str, str], name: str, example: str) -> timedelta | None:
    """Returns the duration in a field of a form, or None if it is empty. Any other text raises an error."""
    if not form.get(name):
        return None
    span = read_duration(form[name])
    if span is None:
        raise InvalidRequest(name, f"is not a duration; write it like {example}")
    if span > LONGEST_MS:
        raise InvalidRequest(name, "is longer than 100 years")
    return timedelta(milliseconds=span)


async def read_form(request: Request) -> dict[str, str]:
    """Reads the fields of a form. The last value counts if a field is repeated, and blanks are removed."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/x-www-form-urlencoded":
        raise InvalidRequest("form", "must be sent as application/x-www-form-urlencoded")
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_FORM_BYTES:
            raise InvalidRequest("form", f"has more than {MAX_FORM_BYTES} bytes")
    try:
        fields = parse_qsl(
            body.decode("utf-8"), keep_blank_values=True, max_num_fields=_MAX_FIELDS, errors="strict"
        )
    except ValueError:
        raise InvalidRequest("form", "cannot be read") from None
    return {name: value.strip() for name, value in fields}
