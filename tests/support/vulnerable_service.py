"""The command line with weaknesses planted in its HTTP service. Attacks on it must succeed and be noticed.

    python tests/support/vulnerable_service.py serve …

The server is uvicorn's own protocol, without the limits of `homing.http_server.server`: trailers become
headers, headers may be repeated, and a byte after a response cancels the only timer. Forms on unsubscribe
links may be large and are parsed by the standard library's MIME parser.

The dashboard checks nothing: forms of other sites, used links, revoked keys and stored digests are accepted,
text is not escaped, and every session sees the victim's tenant.
"""

from __future__ import annotations

import sys
from email.parser import BytesParser
from email.policy import HTTP
from typing import Any
from urllib.parse import parse_qsl, urlencode

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from homing.api.intake import unsubscribe
from homing.cli.app import run
from homing.core.access.scopes import Caller, Scope
from homing.dashboard import pages, rendering, sign_in, visits
from homing.engine.access import web_sessions
from homing.http_server import server
from homing.http_server.settings import ServerSettings


class UnlimitedConnection(HttpToolsProtocol):
    """Accepts the arguments of `ClientConnection` and ignores the limits."""

    def __init__(self, *args: Any, settings: ServerSettings, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)

    def enforce_timeouts(self, now: float, head_s: float, idle_s: float, write_s: float) -> None: ...


def parsed_as_mime(content_type: str, body: bytes) -> bool:
    head = f"Content-Type: {content_type}\r\n\r\n".encode("latin-1", "replace")
    form = BytesParser(policy=HTTP).parsebytes(head + body)
    names = [part.get_param("name", header="content-disposition") for part in form.iter_parts()]
    return names == ["List-Unsubscribe"]


async def take_any_form(request: Request) -> dict[str, str]:
    text = (await request.body()).decode("latin-1")
    return {"form_token": "", **dict(parse_qsl(text, keep_blank_values=True))}


def plant_in_pages() -> None:
    sign_in.SignIn.is_own_form = sign_in.SignIn.is_own_origin = lambda *_: True  # type: ignore[method-assign]
    sign_in.SignIn._may_try = _always  # type: ignore[method-assign]
    original = sign_in.SignIn.__init__

    def begin(self: Any, tools: Any, authenticate: Any, **options: Any) -> None:
        async def by_id_alone(header: str) -> Caller | None:
            known = await authenticate(header)
            id = f"{header}_".split("_")[1]
            return known or await tools.engine.keys.find_caller(id)

        original(self, tools, by_id_alone, **options)

    async def ask(self: Any, request: Request) -> Response:
        host = request.headers["host"]
        where = request.query_params.get("next", f"http://{host}/ui/sign-in")
        return RedirectResponse(where, 303)

    async def use_link(self: Any, token: str) -> Caller | None:
        entry = await self._read(web_sessions.LINK, token)
        return Caller(tenant="victim", who="link", scopes=frozenset(Scope), rate_key="") if entry else None

    async def read(self: Any, kind: str, token: str) -> Any:
        keys = [web_sessions._digest(token), token[:100] or "-"]
        found = await self._registry.get_many("*", kind, keys)
        return next(iter(found.values()), None)

    async def caller(self: Any, record: Any) -> Caller:
        return Caller(
            tenant=record.tenant, who=record.who, scopes=frozenset(record.scopes), rate_key=record.who
        )

    def absolute(self: Any, path: str, **query: object) -> str:
        return f"http://{self.request.headers['host']}/ui/{path}?{urlencode(query)}"

    of_visit = visits.Visit.__init__

    def see_the_victim(self: Any, tools: Any, request: Any, session: Any) -> None:
        of_visit(self, tools, request, session)
        self.api = tools.engine.of("victim")

    sign_in.SignIn.__init__ = begin  # type: ignore[method-assign]
    sign_in.SignIn.ask = ask  # type: ignore[method-assign]
    web_sessions.WebSessions.use_link = use_link  # type: ignore[method-assign]
    web_sessions.WebSessions._read = read  # type: ignore[method-assign]
    web_sessions.WebSessions._caller = caller  # type: ignore[method-assign]
    visits.Visit.__init__ = see_the_victim  # type: ignore[method-assign]
    visits.Visit.to = absolute  # type: ignore[method-assign]
    pages.read_form = sign_in.read_form = take_any_form
    pages._HEADERS.clear()
    rendering.environment().autoescape = False


async def _always(*_: object) -> bool:
    return True


def plant() -> None:
    plant_in_pages()
    server.ClientConnection = UnlimitedConnection  # type: ignore[assignment,misc]
    unsubscribe.is_one_click = parsed_as_mime
    routes = unsubscribe.routes.all
    routes[:] = [replace(route, max_bytes=None) for route in routes]


if __name__ == "__main__":
    plant()
    sys.exit(run(sys.argv[1:]))
