"""Every page of the dashboard, and every live part, with MongoDB as the store."""

from __future__ import annotations

import http.client
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from support.browser_pages import TOML
from support.dashboard_site import SCREENS, DashboardSite, fill
from support.mongo_server import PrivateMongo


@pytest.fixture(scope="module")
def site(mongo_server: PrivateMongo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DashboardSite]:
    folder: Path = tmp_path_factory.mktemp("site")
    with DashboardSite(folder, toml=TOML, store=mongo_server.database_url("dashboard")) as site:
        yield site


class Visitor:
    """A person who is signed in, without a browser."""

    def __init__(self, site: DashboardSite) -> None:
        self._site = site
        self._cookie = ""
        status, _, head = self.ask("GET", site.link().removeprefix(site.url))
        assert status == 200
        self._cookie = re.findall(r"homing_session=[0-9a-f]+", head)[0]

    def ask(self, method: str, path: str, form: dict[str, str] | None = None) -> tuple[int, str, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self._site.port, timeout=60)
        headers = {"Cookie": self._cookie, "Origin": self._site.url}
        if form is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        connection.request(method, path, None if form is None else urlencode(form), headers)
        answer = connection.getresponse()
        body = answer.read()
        head = str(answer.headers)
        connection.close()
        return answer.status, body.decode(), head

    def read_streams(self, paths: Collection[str]) -> dict[str, bytes]:
        """Opens the streams of these parts at the same time, and returns the first event of each."""
        opened = {}
        for path in paths:
            opened[path] = line = http.client.HTTPConnection("127.0.0.1", self._site.port, timeout=60)
            line.request("GET", f"/ui/live/{path}", headers={"Cookie": self._cookie})
        found = {}
        for path, line in opened.items():
            answer, text = line.getresponse(), b""
            assert answer.status == 200, path
            while b"data:" not in text and (piece := answer.read1(65_536)):
                text += piece
            found[path] = text
            line.close()
        return found


def test_every_page_is_shown_and_can_be_acted_on(site: DashboardSite) -> None:
    ids, visitor = fill(site, number=5), Visitor(site)
    batch = site.on_loop(lambda homing: homing.get(ids["dead"])).batch_id
    paths = [
        *(path for path, _ in SCREENS),
        *(f"notifications/{id}" for id in ids.values()),
        f"notifications/{ids['sent']}/message",
        f"batches/{batch}",
        "find?q=order%3DA-1001",
        "find?q=reader1%40example.org",
        f"find?q={ids['sent'][:13]}",
        f"find?batch={batch}",
        "find?status=failed&channel=email&type=invoice",
        "export?status=failed",
        "dead-letters?reason=BAD_RECIPIENT",
        "policies?type=invoice",
    ]
    wrong = {path: status for path in paths if (status := visitor.ask("GET", f"/ui/{path}")[0]) != 200}
    assert wrong == {}
    parts = ("now", "providers", "waiting", "tail", "inbox", "system", "dead-letters")
    streams = visitor.read_streams((*parts, f"notification?id={ids['dead']}", f"batch?id={batch}"))
    assert [path for path, text in streams.items() if b"data: <" not in text] == []
    page = visitor.ask("GET", f"/ui/notifications/{ids['dead']}")[1]
    token = re.findall(r'name="form_token" value="([0-9a-f]+)"', page)[0]
    for path, form in (
        (f"notifications/{ids['dead']}/acknowledge", {"why": "seen"}),
        ("providers/pigeon/breaker", {"phase": "open", "why": "maintenance", "lasting": "1h"}),
        ("providers/splits/email", {"share.hawk": "1", "why": "maintenance", "lasting": "1h"}),
        ("providers/splits/email/reset", {}),
        ("providers/pigeon/breaker", {"phase": "auto"}),
    ):
        assert visitor.ask("POST", f"/ui/{path}", {"form_token": token, **form})[0] == 303, path
    assert site.on_loop(lambda homing: homing.get(ids["dead"])).acknowledged_why == "seen"
