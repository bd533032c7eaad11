"""Sessions of the dashboard over the real pages: cookies, expiry, forms, scopes, links and throttling."""

from __future__ import annotations

import asyncio
import base64
import random
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from html import escape, unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import jwt
import msgspec
import pytest

import homing as homing_package
from homing import Homing
from homing.api.access.authentication import Issuer, TokenVerifier
from homing.cli.demo.fake_providers import DemoProvider
from homing.cli.demo.live_story import LiveStory
from homing.compose import service
from homing.core.access.scopes import Caller, Scope
from homing.core.content.templates import Template, TemplateParts
from homing.core.lifecycle.commands import CommandName
from homing.core.lifecycle.jobs import Job, JobStatus
from homing.core.notifications import Channel, Filter
from homing.core.request_decoding import read_request
from homing.core.retry.policy import Backoff, PolicyPatch, Rule
from homing.core.times import moment
from homing.dashboard.home_page import HomePage
from homing.dashboard.pages import Pages
from homing.dashboard.screens import dead_letters, find
from homing.dashboard.screens.all_screens import all_screens
from homing.dashboard.settings import DashboardSettings
from homing.dashboard.sign_in import COOKIE, SignIn
from homing.dashboard.static_files import MEDIA_TYPES, static_file
from homing.dashboard.visits import NOTICES, DashboardTools
from homing.engine.access.web_sessions import LINK_MS
from homing.engine.operations import searches
from homing.rehearsal.rehearse import rehearse_in_subprocess
from homing.settings import Settings
from homing.testing.manual_clock import ManualClock

ORIGIN = "http://127.0.0.1:8080"
HOUR_MS = 3_600_000
SECRET = "s" * 32


class Answer:
    """A response of the pages."""

    def __init__(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        self.status = status
        self.headers = {name.decode(): value.decode("latin-1") for name, value in headers}
        self.text = body.decode()

    @property
    def cookie(self) -> str:
        found = re.match(rf"{COOKIE}=([^;]*)", self.headers.get("set-cookie", ""))
        return found[1] if found else ""


class Person:
    """A browser with a cookie."""

    def __init__(self, pages: Pages, address: str = "10.0.0.1", host: str = "127.0.0.1:8080") -> None:
        self.pages = pages
        self.address = address
        self.host = host
        self.cookie = ""

    async def get(self, path: str, **headers: str) -> Answer:
        return await self._ask("GET", path, headers)

    async def post(self, path: str, fields: Mapping[str, str], **headers: str) -> Answer:
        own = {"origin": ORIGIN, "content_type": "application/x-www-form-urlencoded", **headers}
        return await self._ask("POST", path, own, urlencode(fields).encode())

    async def sign_in(self, credential: str, **headers: str) -> Answer:
        answer = await self.post("/ui/sign-in", {"credential": credential}, **headers)
        self.cookie = answer.cookie or self.cookie
        return answer

    async def form_token(self) -> str:
        shown = (await self.get("/ui/jobs")).text
        found = re.search(r'name="form_token" value="([0-9a-f]+)"', shown)
        assert found, shown
        return found[1]

    async def _ask(self, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> Answer:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        given = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            if given:
                return given.pop()
            return await asyncio.Event().wait()  # the client stays

        raw = [(b"host", self.host.encode()), (b"accept", b"text/html")]
        raw += [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items() if text]
        if self.cookie:
            raw.append((b"cookie", f"{COOKIE}={self.cookie}".encode()))
        bare, _, query = path.partition("?")
        scope = {
            "type": "http",
            "method": method,
            "path": bare,
            "raw_path": bare.encode(),
            "query_string": query.encode(),
            "scheme": "http",
            "server": ("127.0.0.1", 8080),
            "client": (self.address, 5000),
            "headers": raw,
        }
        await self.pages(scope, receive, send)
        content = b"".join(message.get("body", b"") for message in sent[1:])
        return Answer(sent[0]["status"], sent[0]["headers"], content)


class Site:
    """An engine in memory with its pages, in manual time."""

    def __init__(self, homing: Homing, clock: ManualClock, public_url: str = "") -> None:
        self.homing = homing
        self.clock = clock
        gate = service.build_gate(Settings(), homing)
        issuer = Issuer(
            issuer="id",
            audience="homing",
            algorithm="HS256",
            key=SECRET,
            tenant="default",
            scopes=("admin",),
        )
        gate.use_tokens(TokenVerifier([issuer], clock))
        tools = DashboardTools(
            engine=homing, clock=clock, settings=DashboardSettings(), version="1", public_url=public_url
        )
        self.pages = Pages(
            HomePage(homing, clock, version="1", public_url=public_url),
            random_source=random.Random(1),
            tools=tools,
            sign_in=SignIn(tools, gate.caller, public_url=public_url),
            screens=all_screens(),
        )

    def person(self, address: str = "10.0.0.1") -> Person:
        return Person(self.pages, address)

    async def key(self, *scopes: str, tenant: str = "default") -> str:
        await self.homing.tenants.ensure(tenant, who="test")
        return (await self.homing.keys.create(tenant, "test", scopes or ["admin"], who="test")).text

    async def signed_in(self, *scopes: str, tenant: str = "default") -> Person:
        person = self.person()
        assert (await person.sign_in(await self.key(*scopes, tenant=tenant))).status == 200
        return person


@asynccontextmanager
async def running(public_url: str = "") -> AsyncIterator[Site]:
    clock = ManualClock()
    async with Homing("memory:", clock=clock) as homing:
        yield Site(homing, clock, public_url)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with running() as made:
        yield made


async def test_a_key_signs_in_and_the_cookie_is_protected(site: Site) -> None:
    person = site.person()
    asked = await person.get("/ui/notifications/some-id")
    assert (asked.status, asked.headers["location"]) == (303, "../sign-in?next=notifications%2Fsome-id")
    answer = await person.sign_in(await site.key())
    assert answer.status == 200
    assert set(answer.headers["set-cookie"].lower().split("; ")[1:]) == {
        "httponly",
        "max-age=43200",
        "path=/",
        "samesite=strict",
    }
    assert (await person.get("/ui/now")).status == 200
    home = await person.get("/")
    assert (home.status, home.headers["location"]) == (303, "ui/now")
    stored = await site.homing._backend.list_entries("*", "web_session", limit=10)
    assert person.cookie not in str(stored), "the store has only a digest"


async def test_the_cookie_is_secure_under_https() -> None:
    async with running("https://example.org/notify") as site:
        answer = await site.person().sign_in(await site.key(), origin="https://example.org")
        assert "Secure" in answer.headers["set-cookie"]
        assert "Path=/notify/" in answer.headers["set-cookie"]


@pytest.mark.parametrize("credential", ["", "nonsense", "hm_" + "0" * 50, "ü" * 10, "x" * 10_000])
async def test_what_is_no_key_does_not_sign_in(site: Site, credential: str) -> None:
    answer = await site.person().sign_in(credential)
    assert (answer.status, answer.cookie) == (403, "")


@pytest.mark.parametrize("scopes", [("send",), ("manage", "send")])
async def test_a_key_that_can_see_no_notification_does_not_sign_in(
    site: Site, scopes: tuple[str, ...]
) -> None:
    answer = await site.person().sign_in(await site.key(*scopes))
    assert (answer.status, answer.cookie) == (403, "")
    assert f"only the scope {' and '.join(scopes)}. Use one with the scope read or operate" in answer.text


@pytest.mark.parametrize("scope", ["read", "operate", "admin"])
async def test_the_menu_leads_only_to_screens_that_the_key_may_see(site: Site, scope: str) -> None:
    person = await site.signed_in(scope)
    menu, found, _ = (await person.get("/ui/now")).text.partition("</header>")
    links = [link for link in re.findall(r'href="([a-z][a-z/-]*)"', menu) if "/" not in link]
    assert found
    assert len(links) > 6
    for link in links:
        assert (await person.get(f"/ui/{link}")).status == 200, link


async def test_a_session_ends_when_it_is_idle_and_after_half_a_day_in_any_case(site: Site) -> None:
    person = await site.signed_in()
    for _ in range(23):
        site.clock.advance(29 * 60_000)
        assert (await person.get("/ui/jobs")).status == 200
    site.clock.advance(31 * 60_000)
    assert (await person.get("/ui/jobs")).status == 303
    person = await site.signed_in()
    for _ in range(26):
        site.clock.advance(29 * 60_000)
        last = await person.get("/ui/jobs")
    assert last.status == 303


async def test_a_session_ends_with_its_key_and_with_its_tenant(site: Site) -> None:
    person, key = site.person(), await site.key()
    await person.sign_in(key)
    await site.homing.keys.revoke(key.split("_")[1], who="test")
    assert (await person.get("/ui/jobs")).status == 303
    other = await site.signed_in("admin", tenant="other")
    assert (await other.get("/ui/jobs")).status == 200
    await site.homing.tenants.disable("other", who="test")
    site.clock.advance(6_000)
    assert (await other.get("/ui/jobs")).status == 303


async def test_a_token_signs_in_for_as_long_as_it_is_valid(site: Site) -> None:
    now = site.clock.now_ms() // 1000
    claims = {"iss": "id", "aud": "homing", "sub": "ada", "iat": now, "exp": now + 600}
    person = site.person()
    answer = await person.sign_in(jwt.encode(claims, SECRET, algorithm="HS256"))
    assert answer.status == 200
    assert "Max-Age=600" in answer.headers["set-cookie"]
    assert "jwt:ada" in (await person.get("/ui/jobs")).text
    site.clock.advance(601_000)
    assert (await person.get("/ui/jobs")).status == 303
    forged = base64.urlsafe_b64encode(msgspec.json.encode({**claims, "exp": now + 9999})).decode()
    assert (await person.sign_in(f"e30.{forged}.x")).status == 403


async def test_an_action_needs_the_form_token_and_the_own_origin(site: Site) -> None:
    person = await site.signed_in()
    token = await person.form_token()
    fields = {"form_token": token, "channel": "email", "address": "a@example.org", "why": "test"}
    path = "/ui/recipients/suppress"
    refused = [
        await person.post(path, {**fields, "form_token": ""}),
        await person.post(path, {**fields, "form_token": "0" * 64}),
        await person.post(path, fields, origin="https://evil.example"),
        await person.post(path, fields, origin="null"),
        await person.post(path, fields, origin=""),
        await person.post(path, fields, sec_fetch_site="cross-site"),
        await person.post(path, fields, sec_fetch_site="same-site"),
    ]
    assert [answer.status for answer in refused] == [403] * 7
    stranger = site.person()
    assert (await stranger.post(path, fields)).status == 401
    other = await site.signed_in()
    assert (await other.post(path, fields)).status == 403, "the token of another session"
    assert await site.homing.recipients.suppressions() == ()
    assert (await person.post(path, fields)).status == 303, "the control: the same with everything right"
    assert len(await site.homing.recipients.suppressions()) == 1
    entry = (await site.homing.audit.list("default", limit=1)).items[0]
    assert (entry.action, entry.detail["from"]) == ("suppression.add", "dashboard")


async def test_the_scope_is_checked_in_every_action_and_screen(site: Site) -> None:
    reader = await site.signed_in("read")
    fields = {"form_token": await reader.form_token(), "why": "x", "name": "x", "phase": "open"}
    allowed = []
    for screens in (route for one in _all_routes() for route in one):
        path = re.sub(r"\{\w+\}", "console", screens.path)
        if screens.method == "POST":
            answer = await reader.post(path, fields)
        else:
            answer = await reader.get(path)
        if not any(Caller(tenant="", who="", scopes=frozenset({Scope.READ})).may(s) for s in screens.scopes):
            assert answer.status == 403, screens.path
        elif screens.method == "POST":
            allowed.append(screens.path)
    assert allowed == [], "reading is never an action"


async def test_an_administrator_of_another_tenant_reaches_only_the_own_keys(
    site: Site,
) -> None:
    operator = await site.signed_in()
    await site.key("read", tenant="rival")
    stranger = await site.signed_in(tenant="acme")
    (key,) = await site.homing.keys.list("default")
    (theirs,) = await site.homing.keys.list("rival")
    shown = (await stranger.get("/ui/keys")).text
    assert key.id not in shown
    assert "rival" not in shown
    token, scopes = await stranger.form_token(), {"scope_read": "1"}
    answers = [
        await stranger.get("/ui/keys?tenant=default"),
        await stranger.get("/ui/keys?tenant=rival"),
        await stranger.post("/ui/keys", {"form_token": token, "tenant": "rival", "name": "x", **scopes}),
        await stranger.post(f"/ui/keys/{key.id}/revoke", {"form_token": token}),
        await stranger.post(f"/ui/keys/{theirs.id}/rotate", {"form_token": token}),
        await stranger.post("/ui/tenants", {"form_token": token, "name": "mine"}),
        await stranger.post("/ui/tenants/disable", {"form_token": token, "name": "rival"}),
    ]
    assert [answer.status for answer in answers] == [409, 409, 409, 404, 404, 409, 409]
    assert len(await site.homing.keys.list("rival")) == 1
    assert await site.homing.tenants.enabled("rival")
    token = await operator.form_token()
    own = await operator.post("/ui/tenants/disable", {"form_token": token, "name": "default"})
    assert own.status == 409, "no one could sign in again"
    control = await operator.post(f"/ui/keys/{theirs.id}/revoke", {"form_token": token})
    assert (control.status, control.headers["location"]) == (303, "../../keys?tenant=rival&done=revoked")
    entry = (await site.homing.audit.list("rival", limit=1)).items[0]
    assert (entry.action, entry.target) == ("key.revoke", theirs.id)


async def test_a_tenant_that_does_not_exist_has_no_keys_page(site: Site) -> None:
    operator = await site.signed_in()
    assert (await operator.get("/ui/keys?tenant=nope")).status == 404
    await site.homing.tenants.create("acme", who="test")
    assert "Keys of acme" in (await operator.get("/ui/keys?tenant=acme")).text


@pytest.mark.parametrize("name", ["a/b", "two words", "ü", "x" * 101])
async def test_a_rule_has_a_name_that_can_be_part_of_an_address(site: Site, name: str) -> None:
    person = await site.signed_in()
    form = {"form_token": await person.form_token(), "name": name, "max_attempts": "3", "why": "x"}
    answer = await person.post("/ui/policies/rules", form)
    assert (answer.status, "Name must have 1 to 100 letters, digits" in answer.text) == (422, True)


async def test_the_rule_of_a_synchronous_type_is_that_of_its_mode() -> None:
    settings = Settings(synchronous_types=("login_code",))
    async with Homing(loaded_settings=settings, store="memory:") as homing:
        person = await Site(homing, ManualClock()).signed_in("read")
        shown = (await person.get("/ui/policies?type=login_code")).text
        assert "in synchronous mode" in shown
        assert "in standard mode" in (await person.get("/ui/policies?type=otp")).text


async def test_a_plan_without_a_match_does_not_say_what_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "_DRY_RUN", timedelta(minutes=1))
    async with Homing("memory:") as homing:
        person = Person(service.build_pages(Settings(), service.build_service(Settings(), homing)))
        await person.sign_in((await homing.keys.create("default", "test", ["admin"], who="test")).text)
        shown = (await person.get("/ui/dead-letters/plan")).text
        assert "Nothing matches" in shown
        assert "All unacknowledged dead letters match" not in shown


async def test_a_rule_keeps_the_fields_that_only_the_settings_can_set(site: Site) -> None:
    rule = Rule(name="own", policy=PolicyPatch(backoff=Backoff.CALLABLE, call=lambda attempt: 1_000.0))
    async with Homing("memory:", clock=site.clock, rules=[rule]) as homing:
        person = await Site(homing, site.clock).signed_in()
        page = (await person.get("/ui/policies?edit=own")).text
    assert "Change the rule" not in page
    assert "policies?edit=own" not in page


def _all_routes() -> list[Any]:
    return [one.routes for one in all_screens()]


async def test_a_shared_view_is_shown_after_the_sign_in(site: Site) -> None:
    person, key = site.person(), await site.key()
    view = "find?q=ada%40example.org&status=failed"
    asked = await person.get(f"/ui/{view}")
    assert asked.headers["location"] == f"sign-in?{urlencode({'next': view})}"
    form = await person.get(f"/ui/{asked.headers['location']}")
    assert f'name="next" value="{escape(view)}"' in form.text
    wrong = await person.post("/ui/sign-in", {"credential": "wrong", "next": view})
    assert f'name="next" value="{escape(view)}"' in wrong.text, "a wrong key does not lose it"
    done = await person.post("/ui/sign-in", {"credential": key, "next": view})
    assert f'content="0;url={escape(view)}"' in done.text
    link = await site.homing.web_sessions.create_link("default", "link:host")
    linked = await person.get(f"/ui/sign-in?{urlencode({'link': link, 'next': view})}")
    assert f'content="0;url={escape(view)}"' in linked.text


@pytest.mark.parametrize(
    "elsewhere",
    [
        "https://evil.example",
        "//evil.example",
        "/api/v1/openapi.json",
        "javascript:alert(1)",
        "../../admin",
        "now/../../../admin",
        "sign-in?link=x",
        'now"><script>',
        "now\r\nSet-Cookie: a=b",
    ],
)
async def test_signing_in_leads_to_pages_of_the_dashboard_only(site: Site, elsewhere: str) -> None:
    person = site.person()
    assert 'name="next"' not in (await person.get(f"/ui/sign-in?{urlencode({'next': elsewhere})}")).text
    done = await person.post("/ui/sign-in", {"credential": await site.key(), "next": elsewhere})
    assert 'content="0;url=now"' in done.text


async def test_a_link_on_another_site_shows_its_page_to_a_person_who_is_signed_in(site: Site) -> None:
    person = await site.signed_in()
    cookie, person.cookie = person.cookie, ""  # a strict cookie is not sent from another site
    followed = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}
    answer = await person.get("/ui/batches/unknown?status=failed", **followed)
    assert (answer.status, COOKIE in answer.headers.get("set-cookie", "")) == (200, False)
    assert 'content="0;url=../batches/unknown?status=failed"' in answer.text
    person.cookie = cookie
    own = {"sec_fetch_site": "same-origin", "sec_fetch_mode": "navigate"}
    assert (await person.get("/ui/batches/unknown?status=failed", **own)).status == 404
    stranger = await site.person().get("/ui/batches/unknown", **own)
    assert stranger.headers["location"] == "../sign-in?next=batches%2Funknown", "the control: no session"


async def test_the_form_for_signing_in_says_who_is_signed_in(site: Site) -> None:
    person = await site.signed_in()
    assert "You are signed in as key:" in (await person.get("/ui/sign-in")).text
    assert "You are signed in" not in (await site.person().get("/ui/sign-in")).text


async def test_a_form_that_cannot_be_read_does_not_sign_in_or_out(site: Site) -> None:
    person = await site.signed_in()
    for path, status in (("/ui/sign-in", 422), ("/ui/sign-out", 403)):
        answer = await person.post(path, {}, content_type="multipart/form-data; boundary=x")
        assert (answer.status, answer.cookie) == (status, ""), path
    assert (await person.get("/ui/jobs")).status == 200


async def test_a_job_can_only_do_what_makes_sense_for_what_it_acts_on(site: Site) -> None:
    person = await site.signed_in()
    token = await person.form_token()
    wrong = (
        ("dead-letters", "", "cancel", "Command is cancel; here, it must be resend or acknowledge"),
        ("find", "retrying", "resend", "Command is resend; here, it must be retry or cancel"),
        ("find", "sent", "retry", "Status is sent; jobs act on dead letters and on what waits"),
        ("find", "waiting", "purge", "Command is"),
    )
    for folder, status, command, problem in wrong:
        fields = {"status": status, "command": command, "why": "x"}
        shown = await person.get(f"/ui/{folder}/plan?{urlencode(fields)}")
        started = await person.post(f"/ui/{folder}/start", {"form_token": token, **fields})
        for answer in (shown, started):
            assert (answer.status, problem in answer.text) == (422, True), (fields, answer.text)
    assert await site.homing.jobs.list("default") == ()
    fields = {"form_token": token, "status": "waiting", "command": "cancel", "why": "x", "rate": "fast"}
    answer = await person.post("/ui/find/start", fields)
    assert "Per second is not a number; give notifications per second" in answer.text


async def test_the_details_of_the_audit_trail_are_shown_as_json(site: Site) -> None:
    person = await site.signed_in()
    fields = {"form_token": await person.form_token(), "name": "shop", "scope_read": "1"}
    assert (await person.post("/ui/keys", fields)).status == 200
    assert escape('scopes ["read"]') in (await person.get("/ui/audit")).text.replace("&#34;", "&quot;")


async def test_signing_out_needs_the_form_too(site: Site) -> None:
    person = await site.signed_in()
    token = await person.form_token()
    assert (await person.post("/ui/sign-out", {})).status == 403
    assert (await person.get("/ui/jobs")).status == 200
    answer = await person.post("/ui/sign-out", {"form_token": token})
    assert (answer.status, answer.headers["location"]) == (303, "sign-in")
    assert (await person.get("/ui/jobs")).status == 303


async def test_a_link_signs_in_once_and_within_an_hour(site: Site) -> None:
    token = await site.homing.web_sessions.create_link("default", "link:host")
    first, second = site.person(), site.person()
    answer = await first.get(f"/ui/sign-in?link={token}")
    first.cookie = answer.cookie
    assert (await first.get("/ui/keys")).status == 200
    assert (await second.get(f"/ui/sign-in?link={token}")).status == 403
    late = await site.homing.web_sessions.create_link("default", "link:host")
    site.clock.advance(LINK_MS)
    assert (await second.get(f"/ui/sign-in?link={late}")).status == 403
    assert (await second.get("/ui/sign-in?link=")).status == 403


async def test_attempts_are_throttled_by_address(site: Site) -> None:
    attacker, other = site.person("10.0.0.9"), site.person("10.0.0.8")
    statuses = [(await attacker.sign_in("hm_wrong")).status for _ in range(25)]
    assert statuses[:20] == [403] * 20
    assert statuses[20:] == [429] * 5
    key = await site.key()
    assert (await attacker.sign_in(key)).status == 429, "even with the right key"
    assert (await other.sign_in(key)).status == 200, "the control: another address"


async def test_forms_have_limits(site: Site) -> None:
    person = await site.signed_in()
    token = await person.form_token()
    long = {"form_token": token, "why": "x" * 70_000}
    assert (await person.post("/ui/recipients/suppress", long)).status == 422
    many = {f"f{i}": "x" for i in range(100)}
    assert (await person.post("/ui/recipients/suppress", many)).status == 422
    odd = await person.post("/ui/recipients/suppress", {}, content_type="multipart/form-data; boundary=x")
    assert odd.status == 422


async def test_a_stream_needs_a_session_and_a_scope(site: Site) -> None:
    assert (await site.person().get("/ui/live/now")).status == 401
    assert (await (await site.signed_in()).get("/ui/live/nothing")).status == 404
    operator = await site.signed_in("operate")
    assert (await operator.get("/ui/live/system")).status == 403


async def test_files_are_kept_for_good_under_their_version(site: Site) -> None:
    person = site.person()
    for name in MEDIA_TYPES:
        version = static_file(name).version
        answer = await person.get(f"/ui/{name}?v={version}")
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert (await person.get(f"/ui/{name}?v=0")).headers["cache-control"] == "no-cache"
        assert (await person.get(f"/ui/{name}", if_none_match=f'"{version}"')).status == 304
    assert sum(len(static_file(name).zipped) for name in MEDIA_TYPES) < 80_000


async def test_unknown_things_are_pages_too(site: Site) -> None:
    person = await site.signed_in()
    answer = await person.get("/ui/notifications/018d0c7e-5a00-7000-8000-000000000001")
    assert answer.status == 404
    assert "There is no notification" in answer.text
    assert 'href="../pages.css' in answer.text
    assert (await person.get("/ui/find?status=nonsense")).status == 422
    assert (await person.get("/ui/")).headers["location"] == "now"


async def test_an_address_without_a_page_and_an_error_are_pages_too(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    person = await site.signed_in()
    for path, status, text in (
        ("/ui/nowhere/at/all", 404, "There is no page at this address."),
        ("/ui/providers/mail/test", 405, "This address only takes a form"),
    ):
        answer = await person.get(path)
        assert (answer.status, text in answer.text, "Open the dashboard" in answer.text) == (
            status,
            True,
            True,
        )

    async def fail() -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(site.homing, "overview", fail)
    answer = await person.get("/ui/now")
    assert (answer.status, "The log has the details" in answer.text, "secret" in answer.text) == (
        500,
        True,
        False,
    )
    assert "Open the dashboard" in answer.text


@pytest.mark.parametrize(
    ("path", "fields", "problem"),
    [
        (
            "keys",
            {"name": "x", "scope_read": "1", "lasting": "9999999999d"},
            "Valid for is longer than 100 years",
        ),
        (
            "keys",
            {"name": "x", "scope_read": "1", "lasting": "soon"},
            "Valid for is not a duration; write it like 90d",
        ),
        ("keys", {"name": "x", "scope_read": "1", "lasting": "0"}, "Valid for must be longer than 0"),
        (
            "recipients/suppress",
            {"channel": "email", "address": "x", "why": "x"},
            "Address is not an email address",
        ),
        (
            "policies/rules",
            {"name": "x", "why": "x", "base_ms": "soon"},
            "First delay is 'soon'; give milliseconds",
        ),
        (
            "policies/rules",
            {"name": "x", "why": "x", "max_attempts": "0"},
            "Attempts is 0; it must be from 1 to",
        ),
        ("policies/rules", {"name": "x", "max_attempts": "3"}, "Reason is missing"),
        ("policies/rehearse", {"outage": "soon"}, "Outage is 'soon'; give milliseconds or text like 30s"),
        ("policies/rehearse", {"outage": "9999999999d"}, "Outage is '9999999999d'"),
        ("policies/rehearse", {"rate": "fast"}, "Traffic per second is not a number"),
        ("policies/rehearse", {"kind": "flood"}, "Kind is 'flood'; it must be one of down"),
    ],
)
async def test_a_form_with_a_wrong_value_names_the_field_as_the_form_does(
    path: str, fields: dict[str, str], problem: str
) -> None:
    async with Homing("memory:") as homing:
        served = service.build_service(Settings(), homing)
        served.simulate = rehearse_in_subprocess
        person = Person(service.build_pages(Settings(), served))
        key = await homing.keys.create("default", "test", ["admin"], who="test")
        await person.sign_in(key.text)
        answer = await person.post(f"/ui/{path}", {"form_token": await person.form_token(), **fields})
        assert (answer.status, escape(problem) in answer.text.replace("&#39;", "&#x27;")) == (422, True), (
            answer.text
        )


@pytest.mark.parametrize("data", ["{", "[]", '"x"', "{} {}"])
async def test_sample_data_that_is_no_json_object_is_kept_for_correction(site: Site, data: str) -> None:
    await store_template(site.homing)
    person = await site.signed_in()
    answer = await person.get(f"/ui/templates/shipped?{urlencode({'data': data})}")
    assert answer.status == 200
    assert f">{data}</textarea>" in answer.text.replace("&#34;", '"')
    assert (
        "Sample data is not valid JSON" in answer.text or "Sample data must be a JSON object" in answer.text
    )
    assert "<iframe" not in answer.text
    framed = await person.get(f"/ui/templates/shipped/message?{urlencode({'data': data})}")
    assert framed.status == 422


async def test_a_suppressed_address_is_looked_up(site: Site) -> None:
    for number in range(60):
        await site.homing.recipients.suppress("email", f"a{number:02}@example.org", why="full", who="ada")
    person = await site.signed_in("read")
    first = (await person.get("/ui/recipients")).text
    assert ("a49@example.org" in first, "a59@example.org" in first) == (True, False)
    found = (await person.get("/ui/recipients?channel=email&address=a59%40Example.org")).text
    assert ("a59@example.org" in found, "a49@example.org" in found) == (True, False)
    none = (await person.get("/ui/recipients?channel=sms&address=%2B15550100")).text
    assert "+15550100 is not suppressed on sms." in none
    anywhere = (await person.get("/ui/recipients?channel=&address=a59%40example.org")).text
    assert ("a59@example.org" in anywhere, "a49@example.org" in anywhere) == (True, False)
    nowhere = (await person.get("/ui/recipients?address=b%40example.org")).text
    assert "b@example.org is not suppressed on any channel." in nowhere


@pytest.mark.parametrize(
    ("public_url", "address"),
    [("", ORIGIN), ("https://example.org/notify/", "https://example.org/notify")],
)
async def test_commands_to_copy_work_where_they_are_pasted(public_url: str, address: str) -> None:
    async with running(public_url) as site:
        for tenant, option in (("default", ""), ("acme", " --tenant acme")):
            person = await site.signed_in(tenant=tenant)
            request = {
                "recipient": {"email": "ada@example.org"},
                "channel": "email",
                "content": {"body": "x"},
            }
            (id,) = (await site.homing.of(tenant).submit(read_request(request))).notification_ids
            shown = unescape((await person.get(f"/ui/notifications/{id}")).text)
            assert f"{address}/api/v1/notifications/{id}</pre>" in shown
            assert f"homing explain {id}{option}</pre>" in shown
            assert f"homing cancel {id} --why 'REASON'{option}</code>" in shown


async def test_actions_say_what_they_do(site: Site) -> None:
    person = await site.signed_in()
    sent = await site.homing.send("ada@example.org", channel="email", body="x")
    shown = (await person.get(f"/ui/notifications/{sent.id}")).text
    assert "Makes it due now, ahead of its delay." in shown
    await site.homing.move_to_dead_letter(sent.id, who="test", why="x")
    shown = (await person.get(f"/ui/notifications/{sent.id}")).text
    assert "One more attempt, at once. If it fails, it is a dead letter again." in shown
    assert "A new notification with the same message and all its attempts." in shown
    assert "<strong>moved to the dead letters by test</strong>" in shown
    assert "may deliver it twice" not in shown
    await site.homing.resend(sent.id, who="test", why="x")
    shown = (await person.get(f"/ui/notifications/{sent.id}")).text
    assert "It was resent already, so a retry may deliver it twice." in shown


async def test_who_cannot_see_all_alerts_is_told_so(site: Site) -> None:
    for scopes, tenant, all_seen in (
        (("admin",), "default", True),
        (("read",), "default", False),
        ((), "acme", False),
    ):
        shown = (await (await site.signed_in(*scopes, tenant=tenant)).get("/ui/now")).text
        assert ("No alert is open." in shown) == all_seen
        assert ("are shown to administrators of the tenant default" in shown) != all_seen


async def test_a_time_of_another_day_has_its_date(site: Site) -> None:
    sent = await site.homing.send("ada@example.org", channel="email", body="x")
    at = f"{moment(site.clock.now_ms()):%Y-%m-%d %H:%M:%S}"
    for days, shown in ((0, at[11:]), (2, at)):
        site.clock.advance(days * 24 * HOUR_MS)
        page = (await (await site.signed_in()).get(f"/ui/notifications/{sent.id}")).text
        assert f"{shown}</time><br>" in page.partition('class="timeline"')[2], days


async def test_every_event_of_the_demo_says_what_to_watch(site: Site, tmp_path: Path) -> None:
    story = LiveStory(site.homing, tmp_path, DemoProvider("pigeon"), DemoProvider("hawk"))
    assert set(story.events) <= set(NOTICES)


@pytest.mark.parametrize(
    ("address", "host", "opens"),
    [
        ("127.0.0.1", "127.0.0.1:8080", True),
        ("::1", "localhost:8080", True),
        ("10.0.0.1", "localhost:8080", False),
        ("127.0.0.1", "example.org", False),
    ],
)
async def test_the_demo_needs_no_account_on_its_own_machine_only(
    address: str, host: str, opens: bool
) -> None:
    async with Homing("memory:") as homing:
        pages = service.build_pages(Settings(), service.build_service(Settings(), homing), demo={})
        person = Person(pages, address, host)
        assert ("link=" in (await person.get("/ui/now")).headers["location"]) == opens
        assert (await person.get("/")).status == (303 if opens else 200)


async def test_the_audit_trail_names_the_keys(site: Site) -> None:
    key = await site.homing.keys.create("default", "Ada <on call>", ["admin"], who="test")
    person = site.person()
    await person.sign_in(key.text)
    shown = (await person.get("/ui/audit")).text
    assert f"key:{key.key.id}<br><small>Ada &lt;on call&gt;</small>" in shown


async def test_errors_are_sentences(site: Site) -> None:
    person = await site.signed_in()
    assert (
        ">There is no job nope for tenant &#39;default&#39;.</p>" in (await person.get("/ui/jobs/nope")).text
    )
    assert ">There is no recipient &#39;nope&#39;" in (await person.get("/ui/recipients?id=nope")).text


async def test_a_job_that_runs_is_named_however_many_were_started_after_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def job(id: str, status: JobStatus) -> Job:
        at = moment(site.clock.now_ms())
        return Job(
            id=id,
            command=CommandName.RESEND,
            filter=Filter(),
            who="ada",
            status=status,
            created_at=at,
            updated_at=at,
            worker="w",
        )

    jobs = [job(f"done-{number}", JobStatus.DONE) for number in range(6)]
    jobs += [job("slow", JobStatus.RUNNING), job("old", JobStatus.STOPPED)]

    async def list_jobs(tenant: str, *, limit: int = 100) -> tuple[Job, ...]:
        return tuple(jobs[:limit])

    monkeypatch.setattr(site.homing.jobs, "list", list_jobs)
    person = await site.signed_in()
    for path in ("/ui/now", "/ui/dead-letters"):
        shown = (await person.get(path)).text
        assert ("jobs/slow" in shown, "jobs/old" in shown) == (True, False), path


async def test_a_rule_that_does_not_exist_is_not_recorded_as_removed(site: Site) -> None:
    person = await site.signed_in()
    form = {"form_token": await person.form_token(), "why": "x"}
    assert (await person.post("/ui/policies/rules/nope/remove", form)).status == 404
    assert (await site.homing.audit.list("default", limit=1)).items[0].action == "session.start"


async def test_a_search_with_few_matches_does_not_read_everything_by_itself(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(60):
        order = "A-1" if number in (1, 30, 59) else "B"
        await site.homing.send(f"a{number}@example.org", channel="email", body="x", metadata={"order": order})
    person = await site.signed_in("read")
    complete = (await person.get("/ui/find")).text
    assert ('hx-trigger="revealed"' in complete, "Not complete" in complete) == (True, False)
    monkeypatch.setattr(searches, "_SCANNED", 20)
    shown = (await person.get("/ui/find?q=order%3DA-1")).text
    found = []
    for _ in range(2):
        found += re.findall(r"a\d+@example.org", shown)
        assert ('hx-trigger="revealed"' in shown, "Not complete" in shown) == (False, True)
        onward = re.findall(r'<a href="(find\?[^"]*)">(?:Go on|More)</a>', shown)[-1]
        shown = (await person.get(f"/ui/{unescape(onward)}", hx_request="true")).text
    found += re.findall(r"a\d+@example.org", shown)
    assert sorted(set(found)) == ["a1@example.org", "a30@example.org", "a59@example.org"]


async def test_an_export_has_all_that_a_search_finds_and_is_recorded(site: Site) -> None:
    wanted = [
        await site.homing.send(f"ada{number}@example.org", channel="email", type="invoice", body="x")
        for number in range(60)
    ]
    await site.homing.send("grace@example.org", channel="email", type="news", body="x")
    person = await site.signed_in("read")
    shown = (await person.get("/ui/find?type=invoice")).text
    (address,) = re.findall(r'href="(export\?[^"]*)"', shown)
    answer = await person.get(f"/ui/{address}")
    assert answer.headers["content-disposition"] == 'attachment; filename="notifications.jsonl"'
    found = [msgspec.json.decode(line)["id"] for line in answer.text.splitlines()]
    assert sorted(found) == sorted(one.id for one in wanted)
    assert (await person.get("/ui/export?q=no-such-thing")).text == ""
    entry = (await site.homing.audit.list("default", limit=2)).items[1]
    assert (entry.action, entry.target) == ("notification.export", "")
    await person.get("/ui/export?q=ada7%40example.org")
    assert "ada7" not in str((await site.homing.audit.list("default", limit=1)).items[0]), (
        "the trail has no addresses"
    )


async def store_template(homing: Homing) -> None:
    parts = TemplateParts(subject="Order {{ order }}", text="On its way.")
    locales = {"en-US": {Channel.EMAIL: parts}}
    await homing.templates.put(Template(key="shipped", locales=locales, sample={"order": "1"}), who="test")


async def test_a_check_of_templates_needs_the_scope_manage(site: Site) -> None:
    await store_template(site.homing)
    reader, manager = await site.signed_in("read"), await site.signed_in("read", "manage")
    shown = (await manager.get("/ui/templates?check=1")).text
    assert "1 template: complete" in shown
    assert "Check all" in shown
    shown = (await reader.get("/ui/templates?check=1")).text
    assert "shipped" in shown
    assert "complete" not in shown
    assert "Check all" not in shown


async def test_pages_and_api_share_the_limits_of_previews_and_simulations() -> None:
    async with Homing("memory:") as homing:
        await store_template(homing)
        served = service.build_service(Settings(), homing)
        served.simulate = rehearse_in_subprocess
        person = Person(service.build_pages(Settings(), served))
        key = await homing.keys.create("default", "test", ["admin"], who="test")
        assert (await person.sign_in(key.text)).status == 200
        form = {"form_token": await person.form_token()}
        with served.rendering("default"), served.rendering("default"), served.simulating("default"):
            page = await person.get("/ui/templates/shipped")
            assert (page.status, "Too many renderings are running" in page.text) == (200, True)
            assert (await person.get("/ui/templates/shipped/message")).status == 409
            assert (await person.get("/ui/templates?check=1")).status == 409
            refused = await person.post("/ui/policies/rehearse", form)
            assert (refused.status, "Too many simulations" in refused.text) == (409, True)
        assert "Order 1" in (await person.get("/ui/templates/shipped")).text


async def test_a_locale_that_a_template_does_not_have_is_refused(site: Site) -> None:
    await store_template(site.homing)
    for scopes in (("read",), ("read", "manage")):
        person = await site.signed_in(*scopes)
        answer = await person.get("/ui/templates/shipped?locale=tlh")
        assert (answer.status, "the template has en-US" in answer.text) == (422, True)


@pytest.mark.parametrize("rate", ["nan", "inf", "51", "0", "-1"])
async def test_a_rehearsal_has_a_bounded_rate(rate: str) -> None:
    async with Homing("memory:") as homing:
        served = service.build_service(Settings(), homing)
        served.simulate = rehearse_in_subprocess
        person = Person(service.build_pages(Settings(), served))
        key = await homing.keys.create("default", "test", ["admin"], who="test")
        await person.sign_in(key.text)
        form = {"form_token": await person.form_token(), "rate": rate}
        answer = await person.post("/ui/policies/rehearse", form)
        assert (answer.status, "must be above 0 and at most 50 per second" in answer.text) == (422, True)


async def test_pages_and_api_record_an_action_under_the_same_name() -> None:
    known = set()
    for place in ("api", "cli"):
        for file in (Path(homing_package.__file__).parent / place).rglob("*.py"):
            known |= set(re.findall(r'"([a-z_]+\.[a-z_]+)"', file.read_text()))
    for file in (Path(homing_package.__file__).parent / "dashboard" / "screens").glob("*.py"):
        own = set(re.findall(r'note\(\s*"([a-z_]+\.[a-z_]+)"', file.read_text()))
        assert own - known <= {"notification.export"}, file
    assert {f"notification.{name}" for name in ("retry", "cancel", "reschedule", "resolve")} <= known
    assert set(find._AUDITED.values()) <= known
