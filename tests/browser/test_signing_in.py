"""Signing in and out in a real browser, with keys, links and attacks from another site."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from playwright.sync_api import Page, expect

from support.browser_pages import FilledSite, OpenContext, sign_in
from support.dashboard_site import DashboardSite

pytest_plugins = ["support.browser_pages"]


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)


def paste(page: Page, site: DashboardSite, key: str) -> None:
    page.goto(f"{site.url}/ui/sign-in")
    page.get_by_label("API key or token").fill(key)
    page.get_by_role("button", name="Sign in").click()


def test_a_key_signs_in_until_it_is_revoked(site: DashboardSite, open_context: OpenContext) -> None:
    page, key = open_context(strict=False).new_page(), site.key("admin")
    paste(page, site, key[:-3] + "abc")
    expect(page.get_by_role("alert")).to_have_text("This key or token is not valid.")
    paste(page, site, key)
    page.wait_for_url("**/ui/now")
    (cookie,) = page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["secure"]) == (True, "Strict", False)
    page.goto(f"{site.url}/")
    expect(page).to_have_url(f"{site.url}/ui/now")
    id = key.split("_")[1]
    site.on_loop(lambda homing: homing.keys.revoke(id, who="test"))
    page.goto(f"{site.url}/ui/now")
    page.wait_for_url("**/ui/sign-in")


def test_signing_out_ends_the_session(site: DashboardSite, page: Page) -> None:
    sign_in(page, site)
    (cookie,) = page.context.cookies()
    page.locator("header details.menu").last.locator("summary").click()
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/ui/sign-in")
    assert page.context.cookies() == [], "the browser has forgotten the session"
    page.context.add_cookies([{"name": cookie["name"], "value": cookie["value"], "url": site.url}])
    page.goto(f"{site.url}/ui/now")  # with the cookie from before
    expect(page).to_have_url(f"{site.url}/ui/sign-in")
    expect(page.get_by_label("API key or token")).to_be_visible()
    idle_ms = 3_600_000
    sessions = site.homing.web_sessions
    assert site.on_loop(lambda homing: sessions.find(cookie["value"], idle_ms=idle_ms)) is None


def test_a_link_signs_in_once(site: DashboardSite, open_context: OpenContext) -> None:
    link = site.link()
    first, second = open_context(strict=False).new_page(), open_context(strict=False).new_page()
    first.goto(link)
    first.wait_for_url("**/ui/now")
    second.goto(link)
    expect(second.get_by_role("alert")).to_contain_text("This link was used already")


def test_a_view_that_someone_shares_is_shown_after_the_sign_in_and_to_those_who_are_signed_in(
    filled: FilledSite, open_context: OpenContext
) -> None:
    site, page = filled.site, open_context(strict=False).new_page()
    view = f"{site.url}/ui/find?q=&status=failed&channel=email"

    class Chat(BaseHTTPRequestHandler):
        """A page of another site with a link to the view."""

        def do_GET(self) -> None:
            body = f"<a href='{view.replace('&', '&amp;')}'>look at this</a>".encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with serving(Chat) as port:
        page.goto(f"http://localhost:{port}/")
        page.get_by_role("link").click()
        page.get_by_label("API key or token").fill("wrong")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_have_text("This key or token is not valid.")
        page.get_by_label("API key or token").fill(site.key("read"))
        page.get_by_role("button", name="Sign in").click()
        expect(page).to_have_url(view)
        expect(page.locator("select[name=status]")).to_have_value("failed")
        page.goto(f"http://localhost:{port}/")
        page.get_by_role("link").click()
        expect(page).to_have_url(view)
        expect(page.locator("select[name=status]")).to_have_value("failed")


def test_a_key_that_may_only_read_sees_no_action_and_cannot_act(
    filled: FilledSite, open_context: OpenContext
) -> None:
    site, page = filled.site, open_context(strict=False).new_page()
    paste(page, site, site.key("read"))
    page.wait_for_url("**/ui/now")
    for path in (
        "dead-letters",
        f"notifications/{filled.ids['dead']}",
        "providers",
        "policies",
        "recipients",
    ):
        page.goto(f"{site.url}/ui/{path}")
        expect(page.locator("h1")).to_be_visible()
        forms = page.locator("form[method=post]:not([action$='sign-out'])")
        assert forms.count() == 0, path
    for path in ("keys", "audit"):
        assert (page.goto(f"{site.url}/ui/{path}") or 0).status == 403  # type: ignore[union-attr]
    page.goto(f"{site.url}/ui/now")
    token = page.locator("input[name=form_token]").first.get_attribute("value")
    status = page.evaluate(
        "async ([path, token]) => (await fetch(path, {method: 'POST', "
        "body: new URLSearchParams({form_token: token, why: 'x'})})).status",
        [f"notifications/{filled.ids['dead']}/acknowledge", token],
    )
    assert status == 403


def test_a_form_of_another_site_is_refused(filled: FilledSite, open_context: OpenContext) -> None:
    site, page = filled.site, open_context(strict=False).new_page()
    sign_in(page, site)
    target = f"{site.url}/ui/notifications/{filled.ids['dead']}/acknowledge"

    class Attacker(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = (
                f"<form id=f method=post action='{target}'><input name=why value=x></form>"
                "<script>f.submit()</script>"
            ).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with serving(Attacker) as port:
        page.goto(f"http://localhost:{port}/")
        page.wait_for_url(target)
        expect(page.locator("h1")).to_have_text("Your session has ended")  # the cookie was not sent
        page.goto(f"http://127.0.0.1:{port}/")  # the same site, but another origin: the cookie is sent
        page.wait_for_url(target)
        expect(page.locator("h1")).to_have_text("This form is not valid")
    assert site.on_loop(lambda homing: homing.get(filled.ids["dead"])).acknowledged_at is None


def test_no_site_can_frame_the_dashboard(filled: FilledSite, open_context: OpenContext) -> None:
    site, page = filled.site, open_context(strict=False).new_page()
    sign_in(page, site)

    class Framer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = f"<iframe id=f src='{site.url}/ui/now'></iframe>".encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    refused: list[str] = []
    page.on("console", lambda said: refused.append(said.text))
    with serving(Framer) as port:
        with page.expect_event("console", lambda said: "frame" in said.text.lower()):
            page.goto(f"http://127.0.0.1:{port}/")
        assert page.frame_locator("#f").locator("#verdict").count() == 0
    assert any("frame-ancestors 'none'" in text or "X-Frame-Options" in text for text in refused), refused


def test_everything_works_below_a_prefix_of_a_proxy(filled: FilledSite, open_context: OpenContext) -> None:
    site, page = filled.site, open_context(strict=False).new_page()

    class Proxy(BaseHTTPRequestHandler):
        """Passes requests below /notify/ on, without the prefix. All others get 404."""

        def do_GET(self) -> None:
            if not self.path.startswith("/notify/"):
                self.send_error(404)
                return
            connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=60)
            size = int(self.headers.get("Content-Length") or 0)
            sent = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
            connection.request(self.command, self.path.removeprefix("/notify"), self.rfile.read(size), sent)
            answer = connection.getresponse()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "connection", "date", "server"):
                    self.send_header(name, value)
            self.send_header("Connection", "close")
            self.end_headers()
            while piece := answer.read1(65536):
                try:
                    self.wfile.write(piece)
                    self.wfile.flush()
                except OSError:
                    break
            connection.close()

        do_POST = do_GET  # noqa: N815 (the name is the library's)

        def log_message(self, *_: object) -> None: ...

    token = site.link().partition("?")[2]
    missing: list[str] = []
    page.on("response", lambda got: missing.append(got.url) if got.status == 404 else None)
    with serving(Proxy) as port:
        base = f"http://127.0.0.1:{port}/notify"
        page.goto(f"{base}/ui/sign-in?{token}")
        page.wait_for_url(f"{base}/ui/now")
        expect(page.locator("#stream")).to_have_text("live")
        page.goto(f"{base}/ui/notifications/{filled.ids['sent']}")
        expect(page.frame_locator("#message").locator("h1")).to_have_text("Your order")
        page.get_by_role("link", name="Dead letters").first.click()
        page.get_by_role("link", name="Acknowledge…").first.click()
        page.get_by_label("Reason").fill("seen")
        page.get_by_role("button", name="Acknowledge", exact=False).click()
        page.wait_for_url(f"{base}/ui/jobs/*")
        page.goto("about:blank")
    assert missing == []
