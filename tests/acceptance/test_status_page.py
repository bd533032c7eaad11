"""The page at `/` of a real `homing serve`, as a browser and as curl get it."""

from __future__ import annotations

import http.client
import re
from pathlib import Path
from urllib.parse import urljoin

import pytest

from support.cli_driver import SETTINGS, Cli
from support.service_process import Service, serving


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    (tmp_path / "homing.toml").write_text(SETTINGS)
    return Cli(tmp_path)


def fetch(service: Service, path: str, accept: str) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection(service.address, timeout=60)
    try:
        connection.request("GET", path, headers={"Accept": accept})
        answer = connection.getresponse()
        named = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, named, answer.read().decode()
    finally:
        connection.close()


def test_the_page_says_what_this_is_and_links_to_what_exists(cli: Cli) -> None:
    with serving(cli) as service:
        assert service.process.stdout is not None
        assert f"dashboard: http://{service.address}/," in service.process.stdout.readline()
        status, headers, shown = fetch(service, "/", "text/html")
        assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert headers["content-security-policy"].startswith("default-src 'none'; ")
        assert "This service delivers notifications" in shown
        assert "Healthy" in shown
        links = {urljoin("/", link) for link in re.findall(r'href="?([^\s">:]+)[\s">]', shown)}
        assert {"/docs", "/", "/ui/sign-in"} <= links
        assert {link: fetch(service, link, "*/*")[0] for link in links} == dict.fromkeys(links, 200)
        assert f"http://{service.address}/docs" in fetch(service, "/", "*/*")[2]
        assert service.call("HEAD", "/") == (200, b"")
        assert service.call("POST", "/", {})[0] == 405
        assert (
            b'homing_http_requests_total{operation="show_home",status="2xx"}'
            in (service.call("GET", "/metrics")[1])
        )
        service.until_sent(service.send())
