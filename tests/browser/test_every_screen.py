"""Every screen in a real browser: no errors, accessible, usable on a phone, and readable without scripts."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from homing import Homing
from homing.core.content.templates import Template, TemplateParts
from homing.core.notifications import Channel
from support.browser_pages import FilledSite, OpenContext, sign_in
from support.dashboard_site import HOSTILE, SCREENS, DashboardSite

pytest_plugins = ["support.browser_pages"]

AXE = gzip.decompress((Path(__file__).parents[1] / "vectors" / "axe.min.js.gz").read_bytes()).decode()

RUN_AXE = (
    "async rules => (await axe.run({resultTypes: ['violations'], ...rules})).violations"
    ".map(one => [one.impact, one.id, one.nodes.map(node => node.html).slice(0, 3)])"
)


def screens_of(filled: FilledSite) -> list[str]:
    notifications = [f"notifications/{id}" for id in filled.ids.values()]
    return [*(path for path, _ in SCREENS), *filled.pages, *notifications]


def find_serious(page: Page, scheme: str) -> list[Any]:
    """Returns the problems that axe finds. In the dark, only colors can differ."""
    page.evaluate(AXE)
    rules = {"runOnly": ["color-contrast"]} if scheme == "dark" else {}
    return [one for one in page.evaluate(RUN_AXE, rules) if one[0] in ("serious", "critical")]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_screen_reports_an_error_or_has_a_serious_problem_of_accessibility(
    filled: FilledSite, open_context: OpenContext, scheme: str
) -> None:
    page = open_context(color_scheme=scheme, reduced_motion="reduce").new_page()
    page.goto(f"{filled.site.url}/ui/sign-in")
    problems = {"sign-in": find_serious(page, scheme)}
    page.goto(f"{filled.site.url}/")
    problems["/"] = find_serious(page, scheme)
    sign_in(page, filled.site)
    for path in screens_of(filled):
        page.goto(f"{filled.site.url}/ui/{path}")
        expect(page.locator("h1")).to_be_visible()
        problems[path] = find_serious(page, scheme)
    assert {path: found for path, found in problems.items() if found} == {}


def test_every_screen_fits_a_phone(filled: FilledSite, open_context: OpenContext) -> None:
    page = open_context(viewport={"width": 390, "height": 800}).new_page()
    sign_in(page, filled.site)
    widths = {}
    for path in screens_of(filled):
        page.goto(f"{filled.site.url}/ui/{path}")
        widths[path] = page.evaluate("document.documentElement.scrollWidth")
    assert {path: width for path, width in widths.items() if width > 390} == {}
    page.goto(f"{filled.site.url}/ui/keys")
    page.locator("td summary", has_text="Revoke").first.click()
    box = page.get_by_role("button", name="Revoke").bounding_box()
    assert box is not None
    assert 0 <= box["x"] <= box["x"] + box["width"] <= 390


def test_no_table_is_wider_than_its_screen(filled: FilledSite, open_context: OpenContext) -> None:
    page = open_context(viewport={"width": 1280, "height": 800}).new_page()
    sign_in(page, filled.site)
    too_wide: dict[str, list[str]] = {}
    half = ("now", "dead-letters", "providers", "find", "waiting")  # a window of half the screen
    for width, paths in ((1280, screens_of(filled)), (960, half)):
        page.set_viewport_size({"width": width, "height": 800})
        for path in paths:
            page.goto(f"{filled.site.url}/ui/{path}")
            found = page.locator(".scroll:has(table)").evaluate_all(
                "all => all.filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.innerText)"
            )
            if found:
                too_wide[f"{path} at {width}"] = found
    assert too_wide == {}


def test_every_screen_is_readable_without_scripts(filled: FilledSite, open_context: OpenContext) -> None:
    page = open_context(java_script_enabled=False).new_page()
    sign_in(page, filled.site)
    for path in screens_of(filled):
        page.goto(f"{filled.site.url}/ui/{path}")
        expect(page.locator("h1")).to_be_visible()
        assert len(page.locator("main").inner_text()) > 60, path
        assert page.locator("main button[type=button]:visible").count() == 0, (
            f"{path}: a button without effect"
        )
    page.goto(f"{filled.site.url}/ui/find")
    page.get_by_label("Find", exact=True).fill("nobody3@example.org")
    page.get_by_role("button", name="Find", exact=True).click()
    expect(page.locator("tbody tr")).to_have_count(1)


def plant_hostile_reference_data(site: DashboardSite) -> None:
    """Stores a recipient, a suppression and a template that contain hostile text."""

    async def store(homing: Homing) -> None:
        device = {"token": f"token{HOSTILE}", "platform": HOSTILE[:40], "active": True}
        await homing.recipients.put({"id": "hostile-1", "devices": [device]}, who="test")
        await homing.recipients.suppress("email", "hostile@example.org", why=HOSTILE, who=HOSTILE)
        text = HOSTILE.replace("{{7*7}}", "")
        parts = {Channel.EMAIL: TemplateParts(subject=text, text=text, html=f"<p>{text}</p>")}
        template = Template(key="hostile", locales={"en-US": parts, "de-DE": parts})
        await homing.templates.put(template, who=HOSTILE)

    site.on_loop(store)


def test_hostile_text_stays_text(filled: FilledSite, page: Page) -> None:
    plant_hostile_reference_data(filled.site)
    sign_in(page, filled.site)
    page.goto(f"{filled.site.url}/ui/recipients?id=hostile-1")
    assert HOSTILE in page.locator("main").inner_text()
    for path in (
        "recipients",
        "recipients?id=hostile-1",
        "templates/hostile",
        "batches",
        "audit",
        "providers",
        f"notifications/{filled.ids['hostile']}",
        "dead-letters",
        "now",
        "tail",
        f"find?q={HOSTILE.replace('&', '%26').replace('<', '%3C')}",
    ):
        page.goto(f"{filled.site.url}/ui/{path}")
        assert page.locator("img, script:not([src])").count() == 0, path
    page.goto(f"{filled.site.url}/ui/notifications/{filled.ids['hostile']}")
    assert page.locator("main").inner_text().count(HOSTILE) >= 5
    frame = page.frame_locator("#message")
    assert frame.locator("p").count() >= 1, "the message is shown"
    assert page.locator("#message").get_attribute("sandbox") == ""


def test_the_frame_of_a_message_runs_and_loads_nothing(filled: FilledSite, open_context: OpenContext) -> None:
    site, page = filled.site, open_context(strict=False).new_page()
    html = (
        "<p id=shown>shown</p><script>top.document.title='taken'</script>"
        f"<img src='{site.url}/healthz'><form action='{site.url}/ui/sign-out' method=post></form>"
    )
    (id,) = site.send("frame@example.org", content={"html": html, "text": "x"})
    asked: list[str] = []
    page.on("response", lambda response: asked.append(response.url))
    sign_in(page, site)
    page.goto(f"{site.url}/ui/notifications/{id}")
    expect(page.frame_locator("#message").locator("#shown")).to_have_text("shown")
    assert page.title() != "taken"
    assert [url for url in asked if url.endswith("/healthz")] == []


def test_the_inbox_shows_what_the_console_would_have_sent(filled: FilledSite, page: Page) -> None:
    sign_in(page, filled.site)
    page.goto(f"{filled.site.url}/ui/inbox")
    page.locator("#inbox li a").first.click()
    expect(page.locator(".card h2")).to_contain_text("Your order")
    expect(page.locator("main")).to_contain_text("https://example.org/hook")


def test_a_message_is_read_as_text_and_html_and_at_the_width_of_a_phone(
    filled: FilledSite, open_context: OpenContext
) -> None:
    context = open_context()
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = context.new_page()
    sign_in(page, filled.site)
    page.goto(f"{filled.site.url}/ui/notifications/{filled.ids['sent']}")
    expect(page.locator(".env.purple")).to_have_text("testing")
    frame = page.locator("#message")
    expect(page.frame_locator("#message").locator("b")).to_have_text("on its way")
    page.get_by_role("button", name="Phone").click()
    assert frame.evaluate("element => element.offsetWidth") <= 390
    expect(page.locator("main")).to_contain_text("It is on its way.")
    page.get_by_role("button", name="Copy as curl").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith('curl -H "Authorization: Bearer $KEY" ')
    assert copied.endswith(f"/api/v1/notifications/{filled.ids['sent']}")
    page.get_by_role("button", name="Copy as CLI command").click()
    expect(page.get_by_role("button", name="Copied")).to_have_count(2)
    assert page.evaluate("navigator.clipboard.readText()") == f"homing explain {filled.ids['sent']}"
    page.get_by_text("As JSON, redacted…").click()
    expect(page.locator("#request")).to_contain_text('"subject": "Your order"')
    expect(page.locator("#request")).not_to_contain_text("reader0@example.org")
    expect(page.locator("#answers")).to_contain_text('"providerMessageId": "pigeon-1"')


def test_without_a_clipboard_the_text_is_selected_to_be_copied(
    filled: FilledSite, open_context: OpenContext
) -> None:
    context = open_context()
    context.add_init_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    page = context.new_page()
    sign_in(page, filled.site)
    page.goto(f"{filled.site.url}/ui/notifications/{filled.ids['dead']}")
    page.get_by_text("Resend…").click()
    command = page.locator("#act-resend")
    command.get_by_role("button", name="Copy").click()
    expect(command.get_by_role("button", name="Selected, press Ctrl+C")).to_be_visible()
    selected = page.evaluate("getSelection().toString()")
    assert selected == f"homing dead resend {filled.ids['dead']} --why 'REASON'"


def test_the_page_of_a_notification_leads_to_the_rule_that_applies(filled: FilledSite, page: Page) -> None:
    sign_in(page, filled.site)
    page.goto(f"{filled.site.url}/ui/notifications/{filled.ids['dead']}")
    page.locator("dt", has_text="Rule").locator("+ dd a").click()
    expect(page.locator("main")).to_contain_text("Rule invoices, on top of the preset's rule medium")


def test_filters_are_part_of_the_address(filled: FilledSite, page: Page) -> None:
    sign_in(page, filled.site)
    page.goto(f"{filled.site.url}/ui/find")
    page.get_by_label("Status").select_option("failed")
    page.get_by_role("button", name="Find", exact=True).click()
    page.wait_for_url("**/ui/find?*status=failed*")
    count = page.locator("tbody tr").count()
    page.goto(page.url)
    expect(page.locator("tbody tr")).to_have_count(count)
    page.goto(f"{filled.site.url}/ui/find?q=order%3DA-1001")
    expect(page.locator("tbody tr")).to_have_count(10)
    page.goto(f"{filled.site.url}/ui/find?q={filled.ids['sent']}")
    expect(page).to_have_url(f"{filled.site.url}/ui/notifications/{filled.ids['sent']}")


def test_the_keyboard_is_enough(filled: FilledSite, page: Page) -> None:
    sign_in(page, filled.site)
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#keys")).to_be_hidden()
    with page.expect_navigation():
        page.keyboard.press("r")
    page.keyboard.press("/")
    expect(page.locator("input[data-find]")).to_be_focused()
    page.keyboard.type("nobody2@example.org")
    page.keyboard.press("Enter")
    expect(page.locator("tbody tr")).to_have_count(1)


def test_times_can_be_shown_in_local_time(filled: FilledSite, open_context: OpenContext) -> None:
    page = open_context(timezone_id="Asia/Tokyo").new_page()
    sign_in(page, filled.site)
    page.goto(f"{filled.site.url}/ui/notifications/{filled.ids['dead']}")
    shown = page.locator(".timeline time").first
    utc = shown.inner_text()
    page.locator("[data-zone]").click()
    expect(shown).not_to_have_text(utc)
    page.reload()
    expect(shown).not_to_have_text(utc)
    assert int(shown.inner_text()[:2]) == (int(utc[:2]) + 9) % 24


def test_the_times_in_the_verdict_can_be_shown_in_local_time(
    site: DashboardSite, open_context: OpenContext
) -> None:
    site.wait_for(site.send("ada@example.org"), "sent")
    site.on_loop(lambda homing: homing.force_breaker("pigeon", "open", who="ada", why="test"))
    page = open_context(timezone_id="Asia/Tokyo").new_page()
    sign_in(page, site)
    expect(page.locator("#verdict")).to_contain_text("pigeon forced open since")
    shown = page.locator("#verdict time").first
    utc = shown.inner_text()
    page.locator("[data-zone]").click()
    expect(shown).not_to_have_text(utc)
    hours, minutes = utc.split(":")
    assert shown.inner_text() == f"{(int(hours) + 9) % 24:02}:{minutes}"


def test_a_rehearsal_shows_what_an_outage_would_do(filled: FilledSite, page: Page) -> None:
    sign_in(page, filled.site)
    page.goto(f"{filled.site.url}/ui/policies")
    page.get_by_text("Rehearse an outage…").click()
    page.get_by_label("For", exact=True).fill("2m")
    page.get_by_label("Traffic per second").fill("0.5")
    page.get_by_role("button", name="Rehearse", exact=True).click()
    expect(page.locator("h1")).to_have_text("Rehearsal of an outage")
    expect(page.locator("main svg")).to_be_visible()
