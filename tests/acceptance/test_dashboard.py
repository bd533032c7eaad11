"""The dashboard of real processes: several that share sessions, and the demo."""

from __future__ import annotations

import http.client
import re
import signal
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import pytest

from support.cli_driver import SETTINGS, Cli
from support.service_process import PATIENCE_S, serving


class Browser:
    """Follows redirects and keeps cookies, like a browser without scripts."""

    def __init__(self) -> None:
        self.cookie = ""

    def get(self, url: str) -> tuple[int, str]:
        for _ in range(5):
            parts = urlsplit(url)
            connection = http.client.HTTPConnection(parts.netloc, timeout=60)
            try:
                path = f"{parts.path}?{parts.query}" if parts.query else parts.path
                connection.request("GET", path, headers={"Accept": "text/html", "Cookie": self.cookie})
                answer = connection.getresponse()
                body = answer.read().decode()
            finally:
                connection.close()
            if cookie := answer.getheader("Set-Cookie"):
                self.cookie = cookie.partition(";")[0]
            refresh = re.search(r'http-equiv="refresh" content="0;url=([^"]+)"', body)
            target = answer.getheader("Location") or (refresh[1] if refresh else "")
            if not target:
                return answer.status, body
            url = urljoin(url, target)
        raise AssertionError("too many redirects")


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    (tmp_path / "homing.toml").write_text(SETTINGS)
    return Cli(tmp_path)


def test_all_processes_know_a_session_and_a_link_works_once(cli: Cli) -> None:
    with serving(cli, "--workers", "2") as service:
        assert service.process.stdout is not None
        lines = [service.process.stdout.readline() for _ in range(2)]
        found = re.search(r"http://\S+/ui/sign-in\?link=\w+", "".join(lines))
        assert found, lines
        browser, late = Browser(), Browser()
        status, shown = browser.get(found[0])
        assert (status, "<h1>Now</h1>" in shown) == (200, True)
        for _ in range(12):  # each is a new connection, so both processes answer
            assert "<h1>Jobs</h1>" in browser.get(f"http://{service.address}/ui/jobs")[1]
        assert late.get(found[0])[0] == 403
        assert "Sign in to Homing" in late.get(f"http://{service.address}/ui/jobs")[1]


@pytest.mark.source("003", "441")
def test_the_demo_opens_on_the_dashboard_without_an_account(cli: Cli) -> None:
    process = cli.start("demo", "--listen", "127.0.0.1:0", "--no-browser")
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found
        browser = Browser()
        status, shown = browser.get(found[0])
        assert status == 200
        assert "Start an outage" in shown
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.communicate()
