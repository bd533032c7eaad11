"""Signs people in and out: the form for a key or a token, links that work once, cookies and their checks."""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Awaitable, Callable
from urllib.parse import quote, urlencode, urlsplit

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from homing.core.access.scopes import Caller, Scope
from homing.core.errors import InvalidRequest
from homing.core.routing.rate_limits import RateLimit
from homing.dashboard.rendering import render
from homing.dashboard.settings import DashboardSettings
from homing.dashboard.visits import READERS, DashboardTools, own_page, read_form
from homing.engine.access.web_sessions import KEY_AUTHOR, WebSession
from homing.engine.rate_tokens import RateTokens

COOKIE = "homing_session"

FORM_TOKEN = "form_token"  # noqa: S105 (a name)
"""Name of the field that every form contains."""

Authenticate = Callable[[str], Awaitable[Caller | None]]
"""Returns the caller of an `Authorization` header, or None if the credentials are not valid."""

_ATTEMPTS = RateLimit(0.5, 20)
"""Sign-in attempts from one address. The limit is shared by all processes."""

_ATTEMPTS_FROM_ALL = RateLimit(5.0, 100)

_SIGNS_IN = frozenset({*READERS, Scope.ADMIN})
"""Scopes of which one is needed. A key that can only send or manage cannot see the first page."""

_MAX_CREDENTIAL = 8_192

_FIRST_PAGE = "now"
"""Page after the sign-in, unless another one was asked for."""

_OTHER_SITE = (
    "The form was sent from another site, or a proxy changes the name of the host. Behind a proxy, set "
    "service.public_url."
)


class SignIn:
    """Checks who makes a request, and answers the requests around signing in and out."""

    def __init__(self, tools: DashboardTools, authenticate: Authenticate, *, public_url: str = "") -> None:
        self._tools = tools
        self._authenticate = authenticate
        public = urlsplit(public_url)
        self._public_origin = f"{public.scheme}://{public.netloc}" if public_url else ""
        self._path = f"{public.path.rstrip('/')}/"
        self._tokens = RateTokens(tools.engine.shared, tools.clock)

    @property
    def _settings(self) -> DashboardSettings:
        return self._tools.settings

    async def find(self, request: Request, *, used: bool = True) -> WebSession | None:
        """Returns the session of a request, or None. `used` is False for a request that no person made."""
        token = request.cookies.get(COOKIE, "")
        return await self._tools.engine.web_sessions.find(token, idle_ms=self._settings.idle_ms, used=used)

    def is_own_form(self, request: Request, session: WebSession, fields: dict[str, str]) -> bool:
        """Returns True if one of our own pages has sent the form: its origin and its token are right."""
        return self.is_own_origin(request) and hmac.compare_digest(
            fields.get(FORM_TOKEN, "").encode(), session.form_token.encode()
        )

    def is_own_origin(self, request: Request) -> bool:
        """Returns True if the browser says that one of our own pages has made the request."""
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return False
        origin = request.headers.get("origin", "")
        if origin and origin == self._public_origin:
            return True
        parts = urlsplit(origin)
        return parts.scheme in ("http", "https") and parts.netloc == request.headers.get("host", "")

    async def show(self, request: Request) -> Response:
        """Shows the form, or uses a link that signs in once."""
        link, then = request.query_params.get("link"), _page_after(request.query_params.get("next", ""))
        if link is None:
            return self._form(request, then=then, known=await self.find(request, used=False))
        if not await self._may_try(request):
            return self._form(request, "Too many attempts. Wait a minute, then try again.", 429, then=then)
        caller = await self._tools.engine.web_sessions.use_link(link)
        if caller is None:
            problem = "This link was used already, or has expired. Start homing serve again for a new one."
            return self._form(request, problem, 403, then=then)
        return await self._begin(request, caller, self._settings.session_ms, then)

    async def submit(self, request: Request) -> Response:
        """Signs in with a key or token."""
        if not self.is_own_origin(request):
            return self._form(request, _OTHER_SITE, 403)
        try:
            fields = await read_form(request)
        except InvalidRequest as error:
            return self._form(request, f"This cannot be read: {error}", 422)
        then = _page_after(fields.get("next", ""))
        if not await self._may_try(request):
            return self._form(request, "Too many attempts. Wait a minute, then try again.", 429, then=then)
        credential = fields.get("credential", "")
        known = credential and len(credential) <= _MAX_CREDENTIAL and credential.isascii()
        caller = await self._authenticate(f"Bearer {credential}") if known else None
        if caller is None:
            return self._form(request, "This key or token is not valid.", 403, then=then)
        if not (caller.scopes & _SIGNS_IN):
            has = " and ".join(sorted(scope.value for scope in caller.scopes))
            problem = f"This key has only the scope {has}. Use one with the scope read or operate."
            return self._form(request, problem, 403, then=then)
        lasts_ms = self._settings.session_ms
        if not caller.who.startswith(KEY_AUTHOR):
            lasts_ms = min(lasts_ms, _left_ms(credential, self._tools.clock.now_ms()))
        return await self._begin(request, caller, lasts_ms, then)

    async def leave(self, request: Request) -> Response:
        """Signs out. Needs the token of the form, so that no other site can do it."""
        session = await self.find(request)
        if session is not None:
            try:
                fields = await read_form(request)
            except InvalidRequest:
                fields = {}
            if not self.is_own_form(request, session, fields):
                return self._form(request, _OTHER_SITE, 403)
            await self._tools.engine.audit.note(session.caller, "session.end", "", {})
            await self._tools.engine.web_sessions.end(request.cookies.get(COOKIE, ""))
        answer = RedirectResponse("sign-in", 303)
        answer.delete_cookie(COOKIE, path=self._path, httponly=True, samesite="strict")
        return answer

    async def ask(self, request: Request) -> Response:
        """Returns a redirect to the form, for a page that needs a session. The form leads back to the page.

        The demo needs no account: there, it leads to a link that signs in, if the browser is on this machine.
        """
        folder, page = "../" * (request.url.path.count("/") - 2), _asked_page(request)
        if _is_from_another_site(request):
            return HTMLResponse(render("onward.html", heading="Homing", base=folder, url=folder + page))
        query = {} if page == _FIRST_PAGE else {"next": page}
        if self.is_open_to(request):
            engine = self._tools.engine
            query["link"] = await engine.web_sessions.create_link(engine.tenant, "link:demo")
        return RedirectResponse(f"{folder}sign-in" + (f"?{urlencode(query)}" if query else ""), 303)

    def is_open_to(self, request: Request) -> bool:
        """Returns True in the demo, for a browser on this machine that uses an address of this machine."""
        here = ("127.0.0.1", "localhost", "::1")
        client = request.client.host if request.client else ""
        return (
            self._tools.demo is not None
            and request.url.hostname in here
            and client in (*here, "::ffff:127.0.0.1")
        )

    async def _begin(self, request: Request, caller: Caller, lasts_ms: int, then: str) -> Response:
        """Starts a session and shows a page that leads on.

        It is not a redirect: a browser that followed a link from another site would not send the cookie.
        """
        await self._tools.engine.audit.note(caller, "session.start", "", {})
        token = await self._tools.engine.web_sessions.start(caller, lasts_ms=lasts_ms)
        answer = HTMLResponse(render("onward.html", heading="Signed in", base="", url=then))
        answer.set_cookie(
            COOKIE,
            token,
            max_age=lasts_ms // 1000,
            path=self._path,
            secure=self._is_https(request),
            httponly=True,
            samesite="strict",
        )
        return answer

    def _is_https(self, request: Request) -> bool:
        origin = request.headers.get("origin", "")
        return request.url.scheme == "https" or f"{self._public_origin} {origin}".find("https://") >= 0

    def _form(
        self,
        request: Request,
        problem: str = "",
        status: int = 200,
        *,
        then: str = _FIRST_PAGE,
        known: WebSession | None = None,
    ) -> Response:
        page = render("sign_in.html", problem=problem, settings=self._settings, then=then, known=known)
        return HTMLResponse(page, status)

    async def _may_try(self, request: Request) -> bool:
        host = request.client.host if request.client else ""
        own = await self._tokens.take(f"sign-in:{host}", _ATTEMPTS)
        return not own and not await self._tokens.take("sign-in", _ATTEMPTS_FROM_ALL)


def _page_after(wanted: str) -> str:
    """Returns the address of the page that follows the sign-in: the wanted one if it is one of our own."""
    path, _, query = wanted.partition("?")
    return own_page(path, query) or _FIRST_PAGE


def _asked_page(request: Request) -> str:
    """Returns the address of the page of a request, relative to the folder of all pages."""
    path = quote(request.scope["path"].removeprefix("/ui/"))
    return own_page(path, request.url.query) or _FIRST_PAGE


def _is_from_another_site(request: Request) -> bool:
    """Returns True if a person followed a link on another site, so that the browser did not send the cookie.

    A page of our own that leads to the same address makes the browser send it.
    """
    headers = request.headers
    return (
        headers.get("sec-fetch-site") == "cross-site"
        and headers.get("sec-fetch-mode") == "navigate"
        and COOKIE not in request.cookies
    )


def _left_ms(token: str, now: int) -> int:
    """Returns how long a verified token is still valid. A session must not outlive its token."""
    try:
        payload = token.split(".")[1]
        claims = msgspec.json.decode(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return max(0, int(claims["exp"] * 1000) - now)
    except (IndexError, KeyError, TypeError, ValueError, binascii.Error, msgspec.DecodeError):
        return 0
