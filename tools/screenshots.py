"""Makes pictures of every screen of the dashboard, light, dark and at the width of a phone.

`make screenshots` writes them to build/screenshots. It needs Chromium.
"""

from __future__ import annotations

import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from playwright.sync_api import Browser, sync_playwright

from support.chromium import launch
from support.dashboard_site import SCREENS, DashboardSite, fill, furnish

FOLDER = Path("build/screenshots")

TOML = """
[dashboard]
environment = "staging"
color = "amber"
[templates]
locales = ["en-US", "de-DE"]
[providers.console]
kind = "console"
[routes]
webhook = ["console"]
email = ["pigeon", "hawk"]
sms = ["pigeon", "hawk"]
[[rules]]
name = "fast-invoices"
type = "invoice"
max_attempts = 4
base_ms = "5s"
"""


OPENED = ("providers", "policies-rule", "keys", "job", "recipient")
"""Names of the screens whose forms are open on the pictures."""


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    only = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder, DashboardSite(Path(folder), toml=TOML) as site:
        ids = fill(site)
        single = furnish(site)
        hook = site.send("https://example.org/hook", channel="webhook")
        site.wait_for(hook, "sent")
        site.pigeon.up = False
        late = site.send(*(f"+4915155500{i:02d}" for i in range(14)), channel="sms", content={"text": "Hi"})
        site.wait_for(late, "sent", "retrying")
        now = datetime.now(UTC)
        for hours, number in ((0.6, 6), (2, 3), (5, 14), (9, 2), (14, 8), (20, 5)):
            at = now + timedelta(hours=hours)
            site.send(*(f"reader{i}@example.org" for i in range(number)), send_at=at, type="reminder")
        site.hawk.up = False
        late = site.send(*(f"waits{i}@example.org" for i in range(9)), type="order_shipped")
        site.wait_for(late, "retrying", "pending")
        pages = [
            *SCREENS,
            *single,
            (f"notifications/{ids['dead']}", "notification-dead"),
            (f"notifications/{ids['sent']}", "notification-sent"),
            (f"notifications/{ids['hostile']}", "notification-hostile"),
            (f"notifications/{late[0]}", "notification-late"),
            (f"inbox?id={hook[0]}", "inbox-message"),
        ]
        with sync_playwright() as playwright:
            browser = launch(playwright)
            for scheme in ("light", "dark"):
                _shoot(browser, site, pages, only, scheme, 1280, "")
            _shoot(browser, site, pages, only, "light", 390, "-phone")
            browser.close()


def _shoot(
    browser: Browser,
    site: DashboardSite,
    pages: list[tuple[str, str]],
    only: list[str],
    scheme: str,
    width: int,
    suffix: str,
) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": 800},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    page = context.new_page()
    page.goto(f"{site.url}/ui/sign-in")
    page.screenshot(path=FOLDER / f"sign-in-{scheme}{suffix}.png")
    page.goto(site.link())
    page.wait_for_url("**/ui/now")
    for path, name in pages:
        if not only or name in only:
            page.goto(f"{site.url}/ui/{path}")
            page.wait_for_timeout(300)
            if name in OPENED:
                page.evaluate("for (const one of document.querySelectorAll('details.act')) one.open = true")
            page.screenshot(path=FOLDER / f"{name}-{scheme}{suffix}.png", full_page=True)
    context.close()


if __name__ == "__main__":
    main()
