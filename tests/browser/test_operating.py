"""What operators do in the browser: act on dead letters, watch live figures, and go on after a restart."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace
from playwright.sync_api import Page, expect

from homing import Homing
from homing.core.errors import StoreUnavailable
from homing.core.notifications import Channel
from homing.core.overview import Overview
from homing.core.ports.bridges import BridgeState
from homing.core.ports.stores import SinkRegistration
from homing.core.ports.timers import TimerState
from homing.core.retry.policy import Backoff, Jitter, PolicyPatch, Rule
from homing.dashboard import live
from homing.dashboard.screens import dead_letters, waiting
from homing.engine.operations import commands, searches
from homing.engine.upkeep.process_reports import ProcessReport, ProcessReports
from support.browser_pages import TOML, OpenContext, sign_in
from support.dashboard_site import DashboardSite, furnish
from support.tcp_proxy import TcpProxy

pytest_plugins = ["support.browser_pages"]


def kill_mail(site: DashboardSite, number: int, *, tenant: str = "default") -> list[str]:
    ids = site.send(*(f"nobody{i}@example.org" for i in range(number)), tenant=tenant)
    site.wait_for(ids, "failed", tenant=tenant)
    return ids


def test_from_the_alert_to_resent_dead_letters_in_fewer_than_ten_clicks(
    site: DashboardSite, page: Page
) -> None:
    ids = kill_mail(site, 30)
    site.pigeon.rejects = site.hawk.rejects = False
    sign_in(page, site)
    clicks = 0

    def click(name: str, role: str = "link") -> None:
        nonlocal clicks
        clicks += 1
        page.get_by_role(role, name=name).first.click()  # type: ignore[arg-type]

    expect(page.locator("#verdict")).to_contain_text("30 dead letters")
    page.locator("section", has_text="Open alerts").get_by_role("link", name="Open").first.click()
    clicks += 1
    click("Resend…")
    expect(page.locator(".verdict")).to_contain_text("This would resend 30 dead letters")
    expect(page.locator(".verdict")).to_contain_text("at 10 per second")
    page.get_by_label("Per second").fill("1000")
    click("Estimate again", "button")
    expect(page.locator(".verdict")).to_contain_text(re.compile("at 1,?000 per second"))
    page.get_by_label("Reason").fill("the mailboxes exist now")
    click("Resend 30", "button")
    page.wait_for_url("**/ui/jobs/*")
    expect(page.locator("#job .tag").first).to_have_text("done")
    expect(page.locator("#done")).to_have_text("30")
    site.wait_for([_resent(site, id) for id in ids], "sent")
    assert clicks < 10
    page.goto(f"{site.url}/ui/dead-letters")
    expect(page.locator("#groups tbody tr td").first).to_have_text("0")


def test_pages_that_had_too_little_time_say_that_they_are_not_complete_and_go_on(
    site: DashboardSite, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_mail(site, 3)
    sign_in(page, site)
    monkeypatch.setattr(dead_letters, "_LISTED", timedelta(0))
    monkeypatch.setattr(dead_letters, "_DRY_RUN", timedelta(0))
    monkeypatch.setattr(commands, "_LAST_STEP_MS", 0)
    monkeypatch.setattr(searches, "_SCANNED", 1)
    monkeypatch.setattr(waiting, "_COUNT_WITHIN_S", 0)
    page.goto(f"{site.url}/ui/dead-letters?error_code=none")
    expect(page.locator(".notice")).to_contain_text("Not complete")
    expect(page.get_by_text("No dead letter matches")).to_have_count(0)
    before = page.url
    page.get_by_role("link", name="Go on").click()
    assert page.url != before
    page.goto(f"{site.url}/ui/dead-letters/plan?command=resend&error_code=550")
    expect(page.locator(".verdict")).to_contain_text("None was found in the time that a page has")
    expect(page.get_by_role("button", name="Resend all that match")).to_be_visible()
    page.goto(f"{site.url}/ui/waiting")
    expect(page.get_by_role("heading", name="Waiting", exact=True)).to_be_visible()


def test_all_that_waits_is_retried_or_cancelled_by_a_job(site: DashboardSite, page: Page) -> None:
    site.pigeon.up = site.hawk.up = False
    orders = site.send(*(f"reader{i}@example.org" for i in range(3)), type="order")
    site.wait_for(orders, "retrying")
    news = site.send(*(f"reader{i}@example.org" for i in range(4)), type="news")
    site.wait_for(news, "retrying", "pending")
    sign_in(page, site)
    page.goto(f"{site.url}/ui/find?type=news")
    page.get_by_role("link", name="Retry or cancel all that match").click()
    expect(page.locator(".verdict")).to_contain_text("This would retry 4 notifications")
    page.get_by_label("Command").select_option("cancel")
    page.get_by_role("button", name="Estimate again").click()
    expect(page.locator(".verdict")).to_contain_text("This would cancel 4 notifications")
    page.get_by_label("Reason").fill("the wrong campaign")
    page.get_by_role("button", name="Cancel 4").click()
    expect(page.locator("#job .tag").first).to_have_text("done")
    expect(page.locator("#job")).to_contain_text("status is pending or retrying, type is news")
    site.wait_for(news, "cancelled")
    page.goto(f"{site.url}/ui/waiting")
    page.get_by_role("link", name="Cancel…").click()
    expect(page.locator(".verdict")).to_contain_text("This would cancel 3 notifications")
    page.goto(f"{site.url}/ui/waiting")
    page.get_by_role("link", name="Retry or cancel all that wait…").click()
    expect(page.locator(".verdict")).to_contain_text("This would retry 3 notifications")
    site.on_loop(lambda homing: homing.force_breaker("pigeon", "open", who="ada"))
    page.get_by_role("button", name="Estimate again").click()
    expect(page.locator(".notice")).to_contain_text("The job would stop at once: the breaker")
    assert {site.on_loop(lambda homing, id=id: homing.get(id)).status.value for id in orders} <= {  # type: ignore[misc]
        "retrying",
        "pending",
        "sending",
    }, "a plan changes nothing"


def test_dead_letters_that_a_filter_selects_are_acknowledged(site: DashboardSite, page: Page) -> None:
    ids = kill_mail(site, 2)
    site.wait_for(site.send("hostile@example.org", type="newsletter"), "failed")
    sign_in(page, site)
    page.goto(f"{site.url}/ui/dead-letters")
    page.get_by_label("Error code").fill("550")
    page.get_by_role("button", name="Act on all that match").click()
    expect(page.locator(".verdict")).to_contain_text("This would resend 2 dead letters")
    page.get_by_label("Command").select_option("acknowledge")
    page.get_by_role("button", name="Estimate again").click()
    page.get_by_label("Reason").fill("seen")
    page.get_by_role("button", name="Acknowledge 2").click()
    expect(page.locator("#job .tag").first).to_have_text("done")
    assert all(site.on_loop(lambda homing, id=id: homing.get(id)).acknowledged_at for id in ids)  # type: ignore[misc]
    page.goto(f"{site.url}/ui/dead-letters?acknowledged=yes")
    expect(page.get_by_role("button", name="Act on all that match")).to_have_count(0)


def _resent(site: DashboardSite, id: str) -> str:
    async def find(homing: object) -> str:
        return (await site.homing.get(id)).resent_as or ""

    return site.on_loop(find)


def test_figures_change_without_a_reload_and_keep_focus_selection_and_scroll(
    site: DashboardSite, page: Page
) -> None:
    kill_mail(site, 40)
    sign_in(page, site)
    page.set_viewport_size({"width": 1000, "height": 400})
    page.goto(f"{site.url}/ui/dead-letters")
    count = page.locator("#groups tbody tr td").first
    expect(count).to_have_text("40")
    expect(page.locator("#stream")).to_have_text("live")
    page.get_by_role("link", name="Example", exact=True).focus()
    page.evaluate("window.scrollTo(0, 120)")
    page.evaluate(
        "const cell = document.querySelector('#groups tbody tr td.break');"
        "getSelection().selectAllChildren(cell)"
    )
    kill_mail(site, 1)
    expect(count).to_have_text("41")
    expect(page.get_by_role("link", name="Example", exact=True)).to_be_focused()
    assert page.evaluate("getSelection().toString()") == "no such mailbox"
    assert page.evaluate("window.scrollY") == 120


def test_endless_scrolling_loads_the_next_page(site: DashboardSite, page: Page) -> None:
    ids = site.send(*(f"reader{i}@example.org" for i in range(70)))
    site.wait_for(ids, "sent")
    sign_in(page, site)
    page.goto(f"{site.url}/ui/find")
    page.keyboard.press("End")
    page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    expect(page.locator("tbody tr")).to_have_count(70)


def test_one_notification_can_be_acted_on(site: DashboardSite, page: Page) -> None:
    (dead,) = kill_mail(site, 1)
    site.pigeon.rejects = site.hawk.rejects = False
    sign_in(page, site)
    page.goto(f"{site.url}/ui/notifications/{dead}")
    page.get_by_text("Resend…").click()
    page.locator("details[open]").get_by_label("Provider").select_option("hawk")
    page.locator("details[open]").get_by_label("Reason").fill("try the other one")
    page.get_by_role("button", name="Resend").click()
    expect(page.locator(".notice")).to_have_text("Resent. This is the new notification.")
    expect(page.locator("#history .tag").first).to_have_text("sent")
    expect(page.locator(".timeline")).to_contain_text("attempt 1 at hawk: accepted")
    assert site.hawk.sent


def test_a_breaker_is_forced_open_and_released(site: DashboardSite, page: Page) -> None:
    sign_in(page, site)
    page.goto(f"{site.url}/ui/providers")
    page.get_by_text("pigeon…").click()
    page.locator("details[open]").get_by_label("Reason").fill("maintenance")
    page.get_by_role("button", name="Set the breaker").first.click()
    row = page.locator("tr#pigeon")
    expect(row).to_contain_text("forced")
    expect(row).to_contain_text("maintenance")
    page.get_by_text("pigeon…").click()
    page.locator("details[open]").get_by_label("Breaker").select_option("auto")
    page.locator("details[open]").get_by_label("Reason").fill("it works again")
    page.locator("details[open]").get_by_role("button", name="Set the breaker").click()
    expect(page.locator("tr#pigeon")).not_to_contain_text("forced")


def test_a_rule_is_changed_and_the_change_is_in_the_history(site: DashboardSite, page: Page) -> None:
    sign_in(page, site)
    for attempts in ("4", "7"):
        page.goto(f"{site.url}/ui/policies")
        page.get_by_text("Add or replace a rule…").click()
        form = page.locator("details.act[open]")
        form.get_by_label("Name").fill("invoices")
        form.get_by_label("Type").fill("invoice")
        form.get_by_label("Attempts").fill(attempts)
        form.get_by_label("Reason").fill(f"{attempts} are enough")
        form.get_by_role("button", name="Save the rule").click()
        expect(page.locator(".notice")).to_have_text("Saved.")
    newest = page.locator("td.diff").first
    expect(newest).to_have_text("max attempts − 4 + 7")
    page.goto(f"{site.url}/ui/policies?type=invoice")
    expect(page.locator("main")).to_contain_text("Rule invoices")


def test_a_rule_is_edited_with_all_its_fields_and_each_rule_has_its_curve(
    site: DashboardSite, page: Page
) -> None:
    patch = PolicyPatch(
        max_attempts=5, backoff=Backoff.FIXED, steps_ms=(10_000, 60_000), jitter=Jitter.FULL, factor=3.0
    )
    rule = Rule(name="receipts", type="receipt", policy=patch)
    site.on_loop(lambda homing: homing.policies.set(rule, who="ada", why="test"))
    sign_in(page, site)
    page.goto(f"{site.url}/ui/policies")
    row = page.locator("tr", has_text="receipts").first
    expect(row.locator("td.curve")).to_contain_text("5 in up to 3 min 10 s")
    expect(row.get_by_role("img")).to_have_attribute(
        "aria-label", re.compile("^5 attempts, the last one after")
    )
    row.get_by_role("link", name="Edit").click()
    form = page.locator("#rule")
    expect(form.get_by_label("Type")).to_have_value("receipt")
    expect(form.get_by_label("Delays of a fixed backoff")).to_have_value("10s, 1m")
    form.get_by_label("Attempts").fill("6")
    form.get_by_label("Reason").fill("one more")
    form.get_by_role("button", name="Save the rule").click()
    expect(page.locator("td.diff").first).to_have_text("max attempts − 5 + 6")
    (kept,) = [one for one in site.on_loop(_rules) if one.name == "receipts"]
    assert kept == replace(rule, policy=replace(patch, max_attempts=6))
    page.goto(f"{site.url}/ui/policies?type=receipt")
    expect(page.locator("dl.facts dt", has_text=re.compile("^jitter$")).locator("+ dd")).to_have_text("full")


async def _rules(homing: Homing) -> tuple[Rule, ...]:
    return homing.policies.book.rules


def test_a_tenant_gets_a_key_that_is_rotated_and_is_disabled(
    site: DashboardSite, page: Page, open_context: OpenContext
) -> None:
    sign_in(page, site)
    page.goto(f"{site.url}/ui/keys")
    page.get_by_text("Create a tenant…").click()
    page.get_by_label("Name").fill("acme")
    page.get_by_role("button", name="Create the tenant").click()
    expect(page.get_by_role("heading", name="Keys of acme")).to_be_visible()
    page.get_by_text("Create a key…").click()
    page.get_by_label("What it is for").fill("their shop")
    page.get_by_label("Valid for").fill("90d")
    page.get_by_role("button", name="Create", exact=True).click()
    first = page.locator("#made").inner_text()
    page.locator("summary", has_text="Rotate").click()
    page.get_by_role("button", name="Rotate their shop").click()
    second = page.locator("#made").inner_text()
    assert first != second
    (old, new) = site.on_loop(lambda homing: homing.keys.list("acme"))
    assert old.expires_at is not None
    assert new.expires_at is not None
    theirs = open_context().new_page()
    theirs.goto(f"{site.url}/ui/sign-in")
    theirs.get_by_label("API key or token").fill(second)
    theirs.get_by_role("button", name="Sign in").click()
    theirs.wait_for_url("**/ui/now")
    page.goto(f"{site.url}/ui/keys")
    page.locator("tr", has_text="acme").locator("summary").click()
    page.get_by_role("button", name="Disable acme").click()
    expect(page.locator(".notice")).to_contain_text("Disabled.")
    theirs.goto(f"{site.url}/ui/waiting")
    expect(theirs.get_by_role("button", name="Sign in")).to_be_visible()
    page.get_by_role("button", name="Enable").click()
    expect(page.locator("tr", has_text="acme").locator(".tag")).to_have_text("active")


def test_an_earlier_version_of_a_template_is_compared_and_restored(site: DashboardSite, page: Page) -> None:
    furnish(site)
    sign_in(page, site)
    page.goto(f"{site.url}/ui/templates/order_shipped")
    page.get_by_role("link", name="1", exact=True).click()
    expect(page.locator("#difference del")).to_contain_text('"subject": "Order {{ order }}"')
    expect(page.locator("#difference ins")).to_contain_text("Order {{ order }} is on its way")
    page.get_by_role("button", name="Restore version 1").click()
    expect(page.locator(".notice")).to_have_text("Restored as the newest version.")
    expect(page.locator("main")).to_contain_text("3 current")
    restored = site.on_loop(lambda homing: homing.templates.get("order_shipped"))
    assert restored.locales["en-US"][Channel.EMAIL].subject == "Order {{ order }}"


def test_a_job_that_a_restart_interrupts_is_resumed(tmp_path: Path, open_context: OpenContext) -> None:
    page = open_context(strict=False).new_page()
    with DashboardSite(tmp_path, toml=TOML) as site:
        kill_mail(site, 12)
        sign_in(page, site)
        page.goto(f"{site.url}/ui/dead-letters/plan?command=acknowledge&rate=0.5")
        page.get_by_label("Reason").fill("seen")
        page.get_by_role("button", name="Acknowledge 12").click()
        page.wait_for_url("**/ui/jobs/*")
        expect(page.locator("#done")).not_to_have_text("0")
        port = site.port
    with DashboardSite(tmp_path, toml=TOML, port=port) as site:
        expect(page.locator("#stream")).to_have_text("live")  # the page has found the new process
        expect(page.locator("#job .tag").first).to_have_text("interrupted")
        page.get_by_role("button", name="Resume").click()
        page.get_by_role("button", name="Stop").click()
        expect(page.locator("#job .tag").first).to_have_text("stopped")
        page.get_by_role("link", name="Dead letters").first.click()
        expect(page.locator("#groups")).to_contain_text("acknowledge")


def test_nothing_of_another_tenant_is_visible(site: DashboardSite, open_context: OpenContext) -> None:
    site.key("read", tenant="other")
    (mine,) = kill_mail(site, 1)
    (theirs,) = kill_mail(site, 1, tenant="other")
    page, context = open_context(strict=False).new_page(), open_context(strict=False)
    sign_in(page, site)
    other = context.new_page()
    sign_in(other, site, tenant="other")
    for tab, own, foreign in ((page, mine, theirs), (other, theirs, mine)):
        tab.goto(f"{site.url}/ui/notifications/{own}")
        expect(tab.locator("h1")).to_contain_text("nobody0@example.org")
        tab.goto(f"{site.url}/ui/notifications/{foreign}")
        expect(tab.locator("h1")).to_have_text("Not found")
        tab.goto(f"{site.url}/ui/find")
        expect(tab.locator("tbody tr")).to_have_count(1)


def test_the_last_outcomes_of_a_provider_are_listed_and_stay_open_while_figures_change(
    site: DashboardSite, page: Page
) -> None:
    (dead,) = kill_mail(site, 1)
    sign_in(page, site)
    page.goto(f"{site.url}/ui/providers")
    outcomes = page.locator("#last-pigeon")
    outcomes.locator("summary").click()
    expect(outcomes.locator("tbody tr")).to_have_count(1)
    expect(outcomes).to_contain_text("no such mailbox")
    kill_mail(site, 2)
    expect(outcomes.locator("tbody tr")).to_have_count(3)
    expect(outcomes.locator("tbody tr").first).to_be_visible()
    outcomes.get_by_role("link").last.click()
    page.wait_for_url(f"**/ui/notifications/{dead}")


def test_the_split_is_overridden_for_a_time_and_its_end_is_shown(site: DashboardSite, page: Page) -> None:
    sign_in(page, site)
    page.goto(f"{site.url}/ui/providers")
    page.get_by_text("Split of email…").click()
    form = page.locator("details[open]")
    expect(form.get_by_label("pigeon")).to_have_value("100")
    form.get_by_label("pigeon").fill("0")
    form.get_by_label("hawk").fill("1")
    form.get_by_label("Reason").fill("pigeon is tired")
    form.get_by_role("button", name="Override the split").click()
    expect(page.locator(".notice")).to_contain_text("The split is overridden")
    expect(page.locator("#split-email")).to_contain_text("pigeon 0, hawk 1")
    expect(page.locator("#split-email")).to_contain_text("pigeon is tired")
    (id,) = site.send("reader@example.org")
    site.wait_for([id], "sent")
    page.goto(f"{site.url}/ui/notifications/{id}")
    expect(page.locator(".timeline")).to_contain_text("attempt 1 at hawk: accepted")
    expect(page.locator("#history")).to_contain_text("email was split pigeon 0, hawk 1")
    page.goto(f"{site.url}/ui/now")
    expect(page.locator("main")).to_contain_text("split pigeon 0, hawk 1 until")
    page.goto(f"{site.url}/ui/providers")
    page.get_by_text("Split of email…").click()
    page.get_by_role("button", name="End the override").click()
    expect(page.locator(".notice")).to_have_text("The settings decide the split again.")
    expect(page.locator("#split-email")).to_have_count(0)
    page.goto(f"{site.url}/ui/audit")
    expect(page.locator("main")).to_contain_text("split.set")


def test_a_batch_is_found_with_its_counts_and_notifications(site: DashboardSite, page: Page) -> None:
    (dead,) = kill_mail(site, 1)
    sign_in(page, site)
    page.goto(f"{site.url}/ui/notifications/{dead}")
    batch = page.locator("dt:has-text('Batch') + dd")
    id = batch.inner_text()
    batch.get_by_role("link").click()
    expect(page.locator("h1")).to_have_text("Batch")
    expect(page.locator("#batch .figures")).to_contain_text("failed")
    expect(page.locator("#batch tbody tr")).to_have_count(1)
    page.get_by_text("More", exact=True).click()
    page.get_by_role("link", name="Batches").click()
    expect(page.locator("tbody")).to_contain_text(id)
    page.get_by_label("Batch id").fill(id)
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page).to_have_url(f"{site.url}/ui/batches/{id}")


def test_a_stream_that_is_cut_is_shown_as_lost_and_resumed(
    site: DashboardSite, open_context: OpenContext
) -> None:
    page = open_context(strict=False).new_page()  # the browser reports the lost connection
    with TcpProxy(site.port) as proxy:
        base = f"http://127.0.0.1:{proxy.port}"
        page.goto(site.link().replace(site.url, base))
        page.wait_for_url("**/ui/now")
        page.goto(f"{base}/ui/tail")
        expect(page.locator("#stream")).to_have_text("live")
        proxy.cut()
        expect(page.locator("#stream")).to_have_text("out of date: connection lost, trying again")
        site.send("meanwhile@example.org")
        proxy.resume()
        expect(page.locator("#stream")).to_have_text("live")
        expect(page.locator("#tail")).to_contain_text("meanwhile@example.org")
        page.goto("about:blank")


def test_figures_that_cannot_be_read_do_not_look_current(
    site: DashboardSite, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign_in(page, site)
    expect(page.locator("#stream")).to_have_text("live")

    async def fail() -> Overview:
        raise StoreUnavailable("no connection")

    with monkeypatch.context() as patch:
        patch.setattr(site.homing, "overview", fail)
        expect(page.locator("#stream")).to_have_text("out of date: the figures cannot be read, trying again")
        expect(page.locator("#stream")).to_have_class("lost")
        expect(page.locator("#verdict")).to_contain_text("All is well")
    expect(page.locator("#stream")).to_have_text("live")
    expect(page.locator("#stream")).not_to_have_class("lost")


def test_an_open_page_says_that_its_session_has_ended(
    site: DashboardSite, open_context: OpenContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "_CHECK_S", 0.0)
    page = open_context(strict=False).new_page()  # the browser reports the status 401
    sign_in(page, site)
    expect(page.locator("#stream")).to_have_text("live")
    (cookie,) = page.context.cookies()
    site.on_loop(lambda homing: homing.web_sessions.end(cookie["value"]))
    expect(page.locator("#stream")).to_have_text("out of date: your session has ended, load the page again")
    page.keyboard.press("r")
    expect(page.get_by_role("button", name="Sign in")).to_be_visible()


def test_a_page_without_a_stream_keeps_its_content_and_says_so(
    site: DashboardSite, open_context: OpenContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MAX_STREAMS", 0)
    page = open_context(strict=False).new_page()  # the browser reports the status 503
    sign_in(page, site)
    expect(page.locator("#stream")).to_have_text("not live: load the page again for newer figures")
    expect(page.locator("#verdict")).to_contain_text("All is well")


def test_the_keyboard_alone_acknowledges_a_dead_letter(site: DashboardSite, page: Page) -> None:
    (dead,) = kill_mail(site, 1)
    sign_in(page, site)
    page.goto(f"{site.url}/ui/notifications/{dead}")
    for _ in range(60):  # the number of links before it
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Acknowledge…":
            break
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.type("the address is wrong")
    page.keyboard.press("Enter")
    expect(page.locator(".notice")).to_have_text("Acknowledged.")
    expect(page.locator("#history")).to_contain_text("the address is wrong")


def open_acknowledgement(page: Page, site: DashboardSite, id: str) -> None:
    """Signs in, opens a notification, and fills in the form that acknowledges it."""
    sign_in(page, site)
    page.goto(f"{site.url}/ui/notifications/{id}")
    page.get_by_text("Acknowledge…").click()
    page.locator("details[open]").get_by_label("Reason").fill("seen")


def test_actions_work_without_scripts(site: DashboardSite, open_context: OpenContext) -> None:
    (dead,) = kill_mail(site, 1)
    page = open_context(java_script_enabled=False).new_page()
    open_acknowledgement(page, site, dead)
    page.get_by_role("button", name="Acknowledge").click()
    expect(page.locator(".notice")).to_have_text("Acknowledged.")


def test_an_action_after_the_end_of_the_session_is_refused_with_a_reason(
    site: DashboardSite, open_context: OpenContext
) -> None:
    (dead,) = kill_mail(site, 1)
    page = open_context(strict=False).new_page()
    open_acknowledgement(page, site, dead)
    (cookie,) = page.context.cookies()
    site.on_loop(lambda homing: homing.web_sessions.end(cookie["value"]))
    page.get_by_role("button", name="Acknowledge").click()
    expect(page.locator("h1")).to_have_text("Your session has ended")
    assert site.on_loop(lambda homing: homing.get(dead)).acknowledged_at is None


def test_the_actions_follow_the_status_and_keep_what_is_being_typed(site: DashboardSite, page: Page) -> None:
    site.pigeon.up = site.hawk.up = False
    (id,) = site.send("reader@example.org")
    site.wait_for([id], "retrying")
    sign_in(page, site)
    page.goto(f"{site.url}/ui/notifications/{id}")
    page.get_by_text("Move to dead letter…").click()
    reason = page.locator("details[open]").get_by_label("Reason")
    reason.fill("the customer has left")
    hour = timedelta(hours=1)
    site.on_loop(lambda homing: homing.reschedule(id, hour, who="grace", why="later"))
    expect(page.locator(".timeline")).to_contain_text("rescheduled by grace")
    expect(reason).to_have_value("the customer has left")
    page.locator("details[open]").get_by_role("button", name="Move to dead letter").click()
    expect(page.locator(".notice")).to_have_text("Moved to the dead letters.")
    assert page.locator("summary", has_text="…").all_inner_texts()[:3] == [
        "Retry now…",
        "Resend…",
        "Acknowledge…",
    ]
    site.on_loop(lambda homing: homing.acknowledge(id, who="grace", why="seen"))
    expect(page.get_by_text("Acknowledge…")).to_have_count(0)


def test_a_form_that_is_refused_says_why_and_leads_back(
    site: DashboardSite, open_context: OpenContext
) -> None:
    page = open_context(strict=False).new_page()  # the browser reports the status 422
    site.pigeon.up = site.hawk.up = False
    (id,) = site.send("reader@example.org")
    site.wait_for([id], "retrying")
    sign_in(page, site)
    page.goto(f"{site.url}/ui/notifications/{id}")
    page.get_by_text("Reschedule…").click()
    page.get_by_label("Due in").fill("soon")
    page.locator("details[open]").get_by_label("Reason").fill("x")
    page.get_by_role("button", name="Reschedule").click()
    expect(page.get_by_role("alert")).to_contain_text("is not a duration; write it like 10m or 2h")
    page.get_by_role("link", name="Go back").click()
    expect(page).to_have_url(f"{site.url}/ui/notifications/{id}")


def test_a_job_shows_how_much_is_left(site: DashboardSite, page: Page) -> None:
    kill_mail(site, 12)
    sign_in(page, site)
    page.goto(f"{site.url}/ui/dead-letters/plan?command=acknowledge&rate=1")
    page.get_by_label("Reason").fill("the addresses are wrong")
    page.get_by_role("button", name="Acknowledge 12").click()
    expect(page.locator("#job")).to_contain_text("done of 12")
    expect(page.locator("#job")).to_contain_text("left, about")
    expect(page.get_by_role("progressbar")).to_have_attribute("max", "12")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#job")).to_contain_text("Stopped by link:test")


def test_bridges_timers_and_sinks_are_shown_with_what_waits_for_them(site: DashboardSite, page: Page) -> None:
    site.on_loop(_report_elsewhere)
    sign_in(page, site)
    page.goto(f"{site.url}/ui/system")
    row = page.locator("tr", has_text="kafka")
    expect(row).to_contain_text("worker-2:9")
    expect(row.locator("[data-label='messages waiting']")).to_have_text("4,210")
    expect(row.locator(".tag")).to_have_text("ok")
    row = page.locator("tr", has_text="redis")
    expect(row.locator(".tag")).to_have_text("not connected")
    expect(row.locator("[data-label='due times waiting']")).to_have_text("12")
    row = page.locator("tr", has_text="broken")
    expect(row.locator("[data-label='events waiting']")).not_to_have_text("0")
    expect(row.locator("[data-label=lag]")).to_contain_text(re.compile(r"\d+ (s|min)|now"))
    expect(row.locator("[data-label=parked]")).to_have_text("1")
    row.get_by_role("button", name="Publish parked events again").click()
    expect(page.locator(".notice")).to_have_text("The parked events wait to be published again.")
    expect(page.locator("tr", has_text="broken").locator("[data-label=parked]")).to_have_text("0")


async def _report_elsewhere(homing: Homing) -> None:
    """Stores the report of another process, and a sink that no process runs, with events that wait for it."""
    report = ProcessReport(
        bridges={"kafka": BridgeState(status="ok", accepted=7, waiting=4_210)},
        timers={"redis": TimerState(connected=False, scheduled=3, discarded=1, failures=2, waiting=12)},
    )
    await ProcessReports(homing._backend, "worker-2:9", lambda: report).store()
    await homing._backend.register_sink(
        SinkRegistration(name="broken", kind="webhook", events=frozenset({"StatusChanged"}))
    )
    for number in range(3):
        await homing.send(f"ada{number}@example.org", channel="email", body="Hello")
    async with asyncio.timeout(60):
        while not (events := await homing._backend.outbox("broken", "test", 1, 60_000)):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    await homing._backend.park_events("broken", events)
