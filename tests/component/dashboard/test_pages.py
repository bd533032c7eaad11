"""The pages: what they show, their headers, and what happens if one fails."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urljoin

import pytest
from starlette.requests import Request
from starlette.responses import Response

from homing import Homing
from homing.api.all_routes import all_routes
from homing.core.ports.observers import Readiness
from homing.dashboard import pages as module
from homing.dashboard.home_page import HomePage
from homing.dashboard.pages import Pages
from homing.testing.manual_clock import ManualClock

HTML = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


class FixedReadiness:
    def __init__(self, store: str = "ok", worker: str = "ok") -> None:
        self._found = Readiness(ready=store == worker == "ok", store=store, worker=worker)

    async def readiness(self) -> Readiness:
        return self._found


class RecordingObserver:
    def __init__(self) -> None:
        self.ended_with: list[tuple[str, str, int]] = []

    def began(self, headers: Sequence[tuple[bytes, bytes]]) -> None: ...

    def ended(self, began: None, operation: str, method: str, status: int, took_s: float) -> None:
        self.ended_with.append((operation, method, status))


def build(engine: Any = None, public_url: str = "", **options: Any) -> Pages:
    home = HomePage(engine or FixedReadiness(), ManualClock(), version="1.2.3", public_url=public_url)
    return Pages(home, random_source=random.Random(1), **options)


async def get(
    pages: Pages, path: str = "/", headers: dict[str, str] | None = None, method: str = "GET"
) -> tuple[int, dict[str, str], str]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    raw = [(name.encode(), value.encode("latin-1")) for name, value in (headers or {}).items()]
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "scheme": "http",
        "headers": raw,
    }
    await pages(scope, receive, send)
    named = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], named, b"".join(message.get("body", b"") for message in sent[1:]).decode()


async def test_a_healthy_process_is_shown_as_such() -> None:
    async with Homing("memory:") as homing:
        status, headers, shown = await get(build(homing), headers=HTML)
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "Healthy" in shown
    assert "1.2.3" in shown
    assert 'href="docs"' in shown


@pytest.mark.parametrize(
    ("engine", "problem"),
    [
        (FixedReadiness(store="STORE_UNAVAILABLE"), "STORE_UNAVAILABLE"),
        (FixedReadiness(worker="made no claim for 90 s"), "made no claim for 90 s"),
    ],
)
@pytest.mark.parametrize("headers", [HTML, {}])
async def test_a_process_that_is_not_ready_is_shown_with_the_cause(
    engine: FixedReadiness, problem: str, headers: dict[str, str]
) -> None:
    status, _, shown = await get(build(engine), headers=headers)
    assert status == 503
    assert "Not ready" in shown
    assert problem in shown
    assert "Healthy" not in shown


@pytest.mark.parametrize("path", ["/", "/ui/pages.css", "/ui/none"])
async def test_every_response_has_the_security_headers_and_a_request_id(path: str) -> None:
    _, headers, _ = await get(build(), path, {"x-request-id": "my-own-id"})
    assert headers["content-security-policy"] == (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "form-action 'self'; frame-src 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
    assert headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == ("no-cache" if path.endswith(".css") else "no-store")
    assert headers["x-request-id"] == "my-own-id"


async def test_the_page_needs_no_script_and_loads_nothing_from_elsewhere() -> None:
    _, _, shown = await get(build(public_url="https://notify.example.org"), headers=HTML)
    assert "<script" not in shown
    assert "style=" not in shown, "the policy forbids inline styles"
    elsewhere = shown.replace("https://notify.example.org/api/v1/notifications/send", "")
    assert "http" not in elsewhere.replace("http-equiv", "")


async def test_every_link_works_behind_a_proxy_that_adds_a_prefix() -> None:
    _, _, shown = await get(build(public_url="https://example.org/notify/"), headers=HTML)
    links = [link for link in re.findall(r'(?:href|src)="?([^\s">]+)', shown) if link != "data:,"]
    found = {urljoin("https://example.org/notify/", link.partition("?")[0]) for link in links}
    assert {"https://example.org/notify/docs", "https://example.org/notify/ui/pages.css"} <= found
    assert [link for link in found if not link.startswith("https://example.org/notify/")] == []
    assert "curl https://example.org/notify/api/v1/notifications/send" in shown


async def test_a_program_gets_text_of_80_columns() -> None:
    status, headers, shown = await get(build(), headers={"accept": "*/*", "host": "127.0.0.1:8080"})
    assert (status, headers["content-type"]) == (200, "text/plain; charset=utf-8")
    assert headers["vary"] == "Accept"
    assert "http://127.0.0.1:8080/docs" in shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("host", ['"><script>', "a b", "x/../y", "", "[::1", "a:b:c"])
async def test_a_host_that_is_not_valid_is_not_repeated(host: str) -> None:
    for headers in (HTML, {}):
        _, _, shown = await get(build(), headers={**headers, "host": host})
        assert "http://127.0.0.1:8080/" in shown
        assert not host or host not in shown


@pytest.mark.parametrize("host", ["localhost", "homing.example.org:81", "[::1]:8080"])
async def test_examples_use_the_host_of_the_request(host: str) -> None:
    assert f"http://{host}/docs" in (await get(build(), headers={"host": host}))[2]


async def test_other_methods_and_paths_are_refused() -> None:
    assert (await get(build(), method="POST"))[0] == 405
    assert (await get(build(), "/ui/none"))[0] == 404
    assert (await get(build(), "/ui/pages.css/"))[0] == 404


def test_no_route_of_the_api_is_hidden_by_the_pages() -> None:
    paths = {route.path for route in all_routes()}
    assert not [path for path in paths if path in module.PATHS or path.startswith(module.PREFIX)]


async def test_observers_get_the_name_of_the_page() -> None:
    observer = RecordingObserver()
    pages = build(watchers=[observer])
    for path in ("/", "/ui/none"):
        await get(pages, path)
    assert observer.ended_with == [("show_home", "GET", 200), ("", "GET", 404)]


class SlowHome(HomePage):
    async def respond(self, request: Request) -> Response:
        await asyncio.Event().wait()
        raise AssertionError


class BrokenHome(HomePage):
    async def respond(self, request: Request) -> Response:
        raise RuntimeError("secret text")


def build_with(home: Callable[..., HomePage]) -> Pages:
    made = home(FixedReadiness(), ManualClock(), version="1")
    return Pages(made, random_source=random.Random(1))


async def test_a_page_that_fails_is_a_500_without_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    status, headers, body = await get(build_with(BrokenHome))
    assert status == 500
    assert "secret" not in body
    assert "content-security-policy" in headers
    assert "RuntimeError" in caplog.text


async def test_a_page_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ANSWER_S", 0.01)
    status, headers, _ = await get(build_with(SlowHome))
    assert (status, headers["retry-after"]) == (503, "1")


async def test_the_number_of_pages_in_progress_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_REQUESTS", 2)
    pages = build_with(SlowHome)
    waiting = [asyncio.create_task(get(pages)) for _ in range(2)]
    await asyncio.sleep(0)
    assert (await get(pages))[0] == 503
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert (await get(pages, "/ui/pages.css"))[0] == 200
