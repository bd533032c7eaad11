"""One browser per test process, a service with data, and pages whose errors fail their test."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Dialog, Page, expect, sync_playwright

from support import chromium
from support.dashboard_site import DashboardSite, fill, furnish

WATCH_VIOLATIONS = (
    "window.__violations = []; addEventListener('securitypolicyviolation', "
    "event => __violations.push(`${event.violatedDirective} ${event.blockedURI}`))"
)

IN_FRAME = re.compile(r"/message(\?[^']*)?('|$)")
"""Addresses of rendered messages, at the end of a text or in quotes."""

TOML = """
[dashboard]
environment = "testing"
color = "purple"
[templates]
locales = ["en-US", "de-DE"]
[providers.console]
kind = "console"
[routes]
webhook = ["console"]
email = ["pigeon", "hawk"]
sms = ["pigeon", "hawk"]
"""


@dataclass
class FilledSite:
    """A service with notifications of all kinds, shared by the tests of a module that change nothing."""

    site: DashboardSite
    ids: dict[str, str]
    pages: tuple[str, ...] = ()
    """Addresses of screens that show a single item, or filtered ones."""


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if not chromium.PROGRAM:
        message = "Chromium is not installed (Debian: apt install chromium)"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    expect.set_options(timeout=60_000)
    with sync_playwright() as playwright:
        browser = chromium.launch(playwright)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FilledSite]:
    with DashboardSite(tmp_path_factory.mktemp("site"), toml=TOML) as site:
        ids = fill(site, number=10)
        site.wait_for(site.send("https://example.org/hook", channel="webhook"), "sent")
        pages = tuple(path for path, _ in furnish(site))
        yield FilledSite(site, ids, pages)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[DashboardSite]:
    """A service of the test's own, which it may change."""
    with DashboardSite(tmp_path, toml=TOML) as site:
        yield site


OpenContext = Callable[..., BrowserContext]


@pytest.fixture
def open_context(browser: Browser) -> Iterator[OpenContext]:
    """Opens contexts whose pages must not report an error, a dialog or a violation of the policy."""
    opened: list[BrowserContext] = []
    problems: list[str] = []

    def heard(said: ConsoleMessage) -> None:
        in_frame = any(map(IN_FRAME.search, (said.location.get("url", ""), said.text)))
        if said.type == "error" and not in_frame:  # the browser reports what it blocks in a message's frame
            problems.append(said.text)

    def spoken(dialog: Dialog) -> None:
        problems.append(dialog.message)
        dialog.dismiss()

    def watch(page: Page) -> None:
        page.on("console", heard)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", spoken)

    def open_one(*, strict: bool = True, **options: Any) -> BrowserContext:
        context = browser.new_context(**options)
        context.set_default_timeout(60_000)
        context.add_init_script(WATCH_VIOLATIONS)
        if strict:
            context.on("page", watch)
        opened.append(context)
        return context

    yield open_one
    for context in opened:
        for page in context.pages:
            if page.url.startswith("http") and context.browser is not None:
                problems += page.evaluate("window.__violations || []")
        context.close()
    assert problems == []


@pytest.fixture
def page(open_context: OpenContext) -> Page:
    return open_context().new_page()


def sign_in(page: Page, site: DashboardSite, *, tenant: str = "default") -> None:
    """Signs in with a link, as an administrator."""
    page.goto(site.link(tenant))
    page.wait_for_url("**/ui/now")
