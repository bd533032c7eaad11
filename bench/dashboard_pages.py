"""Measures the time to the first byte of every page of the dashboard, with many notifications in the store.

    python bench/dashboard_pages.py sqlite:/dev/shm/pages.db --rows 1000000
    python bench/with_servers.py postgres -- python bench/dashboard_pages.py {postgres} --rows 5000000

The store must be new. It is filled with SQL, as by dashboard_reads.py. `homing serve --no-worker` serves the
pages, and each page is requested again and again over HTTP. The first request of each page counts. The bar is
a p95 below 300 ms for each page.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlencode

from dashboard_reads import BAR_MS, DECLARED, prepare
from homing import Homing
from homing.providers.local.scripted import ScriptedProvider

SETTINGS = """
store = "{store}"
[search]
metadata_keys = {declared}
[service]
key_file = "{folder}/admin.key"
[providers.mail]
kind = "console"
channels = ["email"]
"""


class Site:
    """A running service to which this program is signed in."""

    def __init__(self, address: str, link: str) -> None:
        self.address = address
        connection = http.client.HTTPConnection(address, timeout=60)
        connection.request("GET", f"/ui/sign-in?link={link}")
        answer = connection.getresponse()
        self.cookie = (answer.getheader("set-cookie") or "").partition(";")[0]
        if answer.status != 200 or not self.cookie:
            raise SystemExit(f"cannot sign in: {answer.status} {answer.read()[:500]!r}")
        connection.close()

    def get(self, path: str) -> tuple[int, float, bytes]:
        """Returns the status of a page, the milliseconds to its first byte, and the page."""
        connection = http.client.HTTPConnection(self.address, timeout=60)
        connection.connect()
        began = time.perf_counter()
        connection.request("GET", f"/ui/{path}", headers={"Cookie": self.cookie, "Accept": "text/html"})
        answer = connection.getresponse()
        first = answer.read(1)
        took = 1000 * (time.perf_counter() - began)
        # An export is not read to its end.
        page = first if answer.getheader("content-disposition") else first + answer.read()
        connection.close()
        return answer.status, took, page


@contextmanager
def serving(settings: str, folder: Path) -> Iterator[str]:
    """Runs the service without a worker. Yields its address."""
    (folder / "homing.toml").write_text(settings, encoding="utf-8")
    command = [str(Path(sys.executable).parent / "homing"), "serve", "--no-worker", "--listen", "127.0.0.1:0"]
    service = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert service.stdout is not None
        greeting = service.stdout.readline()
        found = re.match(r"serving on http://(127\.0\.0\.1:\d+) ", greeting)
        if found is None:
            raise SystemExit(f"homing serve did not start: {greeting}")
        yield found[1]
    finally:
        service.terminate()
        service.wait(60)


def paths_of(site: Site, rows: int) -> dict[str, str]:
    """Returns the address of each page by its name."""
    ids = re.findall(rb"notifications/([0-9a-f-]{36})", site.get("find?status=failed")[2])
    if not ids:
        raise SystemExit("the page of failed notifications shows none")
    dead = ids[0].decode("ascii")
    group = urlencode({"command": "resend", "reason": "BAD_RECIPIENT", "error_code": "E5"})
    [sent, *_] = re.findall(rb"notifications/([0-9a-f-]{36})", site.get("find?status=sent")[2])
    searches = {
        "find: id prefix": dead[:9],
        "find: address": "user77@example.org",
        "find: recipient": "user-77",
        "find: message id": f"m-{rows // 2 + 1}",
        "find: batch": f"b-{rows // 40}",
        "find: declared metadata": f"order={rows // 3}",
        "find: declared metadata, many": "campaign=c-1",
        "find: other metadata, newest": f"note=n-{rows - 10}",
        "find: other metadata, not in the scan": "note=n-1",
        "find: nothing": "there is no such text",
    }
    return {
        "now": "now",
        "providers": "providers",
        "dead letters": "dead-letters",
        "dead letters: filtered": "dead-letters?error_code=E5",
        "dead letters: acknowledged": "dead-letters?acknowledged=yes",
        "dead letters: dry run": "dead-letters/plan?command=resend",
        "dead letters: dry run of a group": f"dead-letters/plan?{group}",
        "dead letters: a rare error": "dead-letters?error_code=NONE",
        "dead letters: dry run of a rare error": "dead-letters/plan?command=resend&error_code=NONE",
        "find": "find",
        "find: failed": "find?status=failed",
        "find: waiting": "find?status=retrying",
        "find: provider and status": "find?status=sent&provider=mail",
        "find: type": "find?type=order",
        "find: no such type": "find?type=other",
        **{name: f"find?q={quote(text)}" for name, text in searches.items()},
        "notification: dead letter": f"notifications/{dead}",
        "notification: sent": f"notifications/{sent.decode('ascii')}",
        "notification: message": f"notifications/{dead}/message",
        "waiting": "waiting",
        "policies": "policies",
        "templates": "templates",
        "inbox": "inbox",
        "jobs": "jobs",
        "recipients": "recipients",
        "recipients: one": "recipients?id=user-77",
        "keys": "keys",
        "audit": "audit",
        "audit: verify": "audit?verify=yes",
        "system": "system",
        "tail": "tail",
        "export": "export?status=failed",
    }


def measure(site: Site, rows: int, times: int) -> bool:
    """Requests each page again and again, and prints the figures. Returns True if all meet the bar."""
    good = True
    for name, path in paths_of(site, rows).items():
        took = []
        for _ in range(times):
            status, ms, page = site.get(path)
            if status != 200:
                raise SystemExit(f"{path} returned {status}: {page[:300]!r}")
            took.append(ms)
        first = took[0]
        took.sort()
        p95 = took[min(len(took) - 1, int(0.95 * len(took)))]
        good = good and p95 < BAR_MS
        print(
            f"{name:38} first {first:7.1f} ms   median {took[len(took) // 2]:7.1f} ms   p95 {p95:7.1f} ms"
            f"   {'met' if p95 < BAR_MS else 'MISSED'}",
            flush=True,
        )
    return good


async def create_link(store: str) -> str:
    """Returns the token of a link that signs in once."""
    async with Homing(store=store.removeprefix("sqlite:"), providers={"mail": ScriptedProvider()}) as homing:
        return await homing.web_sessions.create_link("default", "link:bench")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("store", help="sqlite:FILE or postgresql://…, which must be new")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--filled", action="store_true", help="the store was filled by an earlier run")
    given = parser.parse_args()
    if not given.filled:
        asyncio.run(prepare(given.store, given.rows))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = given.store
        if store.startswith("sqlite:"):
            store = str(Path(store.removeprefix("sqlite:")).resolve())
        settings = SETTINGS.format(store=store, declared=list(DECLARED), folder=folder)
        link = asyncio.run(create_link(given.store))
        with serving(settings, folder) as address:
            good = measure(Site(address, link), given.rows, given.times)
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
