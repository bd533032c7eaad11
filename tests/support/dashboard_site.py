"""The whole service with its dashboard, on a thread of its own, with data for every screen."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from homing import Homing
from homing.compose import service
from homing.core.lifecycle.outcomes import Outcome
from homing.core.notifications import Channel, OutcomeKind
from homing.core.ports.providers import Delivery
from homing.core.request_decoding import read_request
from homing.dashboard import pages
from homing.dashboard.screens import dead_letters, waiting
from homing.dashboard.visits import DemoEvent
from homing.engine.provider_roster import Listed
from homing.http_server.server import open_listener
from homing.rehearsal.rehearse import rehearse_in_subprocess
from homing.settings import Settings, load_settings

T = TypeVar("T")

PATIENCE_S = 60
"""Time that a page and a rehearsal may take. The limits of the service are too short for a busy machine."""

HOSTILE = '"><img src=x onerror=alert(1)><script>alert(2)</script>{{7*7}}&lt;b&gt;'
"""Text that must stay text wherever it is shown."""


class Vendor:
    """A simulated provider. The address decides the outcome, and `up` whether it works at all."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.up = True
        self.rejects = True
        self.sent: list[str] = []

    async def send(self, delivery: Delivery) -> Outcome:
        if not self.up:
            return Outcome(OutcomeKind.TRANSIENT, error_code="503", error="service unavailable")
        if self.rejects and delivery.address.startswith("nobody"):
            return Outcome(OutcomeKind.BAD_RECIPIENT, error_code="550", error="no such mailbox")
        if self.rejects and delivery.address.startswith("hostile"):
            return Outcome(OutcomeKind.BAD_CONTENT, error_code="X<b>", error=HOSTILE)
        self.sent.append(delivery.notification_id)
        return Outcome(OutcomeKind.ACCEPTED, provider_message_id=f"{self.name}-{len(self.sent)}")

    async def check(self) -> bool:
        return self.up

    async def close(self) -> None:
        """Does nothing."""


def _limits() -> tuple[float, timedelta, timedelta, float]:
    """Returns the times that a page, a list, a dry run and a histogram may take."""
    return pages._ANSWER_S, dead_letters._LISTED, dead_letters._DRY_RUN, waiting._COUNT_WITHIN_S


def _limit(page_s: float, listed: timedelta, dry_run: timedelta, counted_s: float) -> None:
    pages._ANSWER_S, waiting._COUNT_WITHIN_S = page_s, counted_s
    dead_letters._LISTED, dead_letters._DRY_RUN = listed, dry_run


class DashboardSite:
    """A running service. `on_loop` runs code of the engine, and `link` returns a link that signs in."""

    def __init__(
        self,
        folder: Path,
        *,
        toml: str = "",
        store: str = "",
        port: int = 0,
        worker: bool = True,
        demo: Mapping[str, DemoEvent] | None = None,
    ) -> None:
        self.folder = folder
        self.pigeon, self.hawk = Vendor("pigeon"), Vendor("hawk")
        (folder / "homing.toml").write_text(
            f'store = "{store or folder / "homing.db"}"\n{toml}', encoding="utf-8"
        )
        self._worker = worker
        self._demo = demo
        self._port = port
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: uvloop.run(self._serve()), daemon=True)
        self.problem: BaseException | None = None

    def __enter__(self) -> DashboardSite:
        self._thread.start()
        assert self._ready.wait(60), "the service did not start"
        if self.problem is not None:
            raise self.problem
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stops the service. Its store stays."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._server.stop)
            self._thread.join(60)
            assert not self._thread.is_alive(), "the service did not stop"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def on_loop(self, work: Callable[[Homing], Awaitable[T]]) -> T:
        """Runs a coroutine of the engine on the engine's loop and returns its result."""

        async def call() -> T:
            return await work(self.homing)

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(60)

    def link(self, tenant: str = "default") -> str:
        """Returns a link that signs in once as an administrator."""
        token = self.on_loop(lambda homing: homing.web_sessions.create_link(tenant, "link:test"))
        return f"{self.url}/ui/sign-in?link={token}"

    def key(self, *scopes: str, tenant: str = "default") -> str:
        """Creates an API key and returns its text."""

        async def create(homing: Homing) -> str:
            await homing.tenants.ensure(tenant, who="test")
            return (await homing.keys.create(tenant, "for a test", scopes, who="test")).text

        return self.on_loop(create)

    def send(
        self, *addresses: str, channel: str = "email", tenant: str = "default", **fields: Any
    ) -> list[str]:
        """Sends one message to each address, and returns the ids."""
        content = {"subject": "Your order", "body": "It is on its way.", **fields.pop("content", {})}
        to = {"email": "email", "sms": "phone", "webhook": "url"}[channel]

        async def submit(homing: Homing) -> list[str]:
            api = homing if tenant == homing.tenant else homing.of(tenant)
            ids: list[str] = []
            for address in addresses:
                request = {"recipient": {to: address}, "channel": channel, "content": content, **fields}
                done = await api.submit(read_request(request))
                ids += done.notification_ids
            return ids

        return self.on_loop(submit)

    def wait_for(self, ids: Sequence[str], *statuses: str, tenant: str = "default") -> None:
        """Waits until all notifications have one of these statuses."""

        async def wait(homing: Homing) -> None:
            api = homing if tenant == homing.tenant else homing.of(tenant)
            async with asyncio.timeout(60):
                for id in ids:
                    while (await api.get(id)).status.value not in statuses:  # noqa: ASYNC110 (polls)
                        await asyncio.sleep(0.02)

        self.on_loop(wait)

    async def _serve(self) -> None:
        log, limits = logging.getLogger("homing"), _limits()
        level = log.level
        log.setLevel(logging.ERROR)  # dead letters are expected here
        _limit(PATIENCE_S, timedelta(seconds=PATIENCE_S), timedelta(seconds=PATIENCE_S), PATIENCE_S)
        try:
            await self._run()
        except BaseException as error:
            self.problem = error
            raise
        finally:
            # Other tests of this process read the log.
            log.setLevel(level)
            _limit(*limits)
            self._ready.set()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        settings: Settings = load_settings(self.folder / "homing.toml")
        both = (Channel.EMAIL, Channel.SMS)
        given = {
            "pigeon": Listed(id="pigeon", provider=self.pigeon, channels=both),
            "hawk": Listed(id="hawk", provider=self.hawk, channels=both),
        }
        async with Homing(loaded_settings=settings, providers=given) as self.homing:
            if self._worker:
                self.homing.start_worker()
            served = service.build_service(settings, self.homing)
            served.simulate = partial(rehearse_in_subprocess, within_ms=PATIENCE_S * 1000)
            self._server = service.build_server(settings, served, demo=self._demo)
            at = open_listener("127.0.0.1", self._port)
            self.port = at.getsockname()[1]
            self._ready.set()
            await self._server.serve([at])


SCREENS = (
    ("now", "now"),
    ("dead-letters", "dead-letters"),
    ("dead-letters/plan?command=resend", "plan"),
    ("find", "find"),
    ("providers", "providers"),
    ("waiting", "waiting"),
    ("policies", "policies"),
    ("templates", "templates"),
    ("inbox", "inbox"),
    ("batches", "batches"),
    ("jobs", "jobs"),
    ("recipients", "recipients"),
    ("keys", "keys"),
    ("audit?verify=1", "audit"),
    ("tail", "tail"),
    ("system", "system"),
)
"""Address of each screen that needs no id, and its name."""

TEMPLATES = {
    "order_shipped/en/email.subject.txt": "Order {{ order }} is on its way",
    "order_shipped/en/email.html": "<h1>Hello {{ name }}</h1><p>Order {{ order }} is on its way.</p>",
    "order_shipped/en/email.txt": "Hello {{ name }}, order {{ order }} is on its way.",
}


def fill(site: DashboardSite, *, number: int = 40) -> dict[str, str]:
    """Sends messages of all kinds, and returns ids of interesting ones by name."""
    sent = site.send(
        *(f"reader{i}@example.org" for i in range(number)),
        type="order_shipped",
        content={"html": "<h1>Your order</h1><p>It is <b>on its way</b>.</p>", "text": "It is on its way."},
        metadata={"order": "A-1001", "campaign": "autumn"},
    )
    sms = site.send(*(f"+4915112345{i:02d}" for i in range(8)), channel="sms", content={"text": "Your code"})
    dead = site.send(*(f"nobody{i}@example.org" for i in range(12)), type="invoice")
    hostile = site.send(
        "hostile@example.org",
        type="newsletter",
        content={"subject": HOSTILE, "html": f"<p>{HOSTILE}</p>", "text": HOSTILE},
        metadata={"note": HOSTILE},
    )
    site.wait_for([*sent, *sms], "sent")
    site.wait_for([*dead, *hostile], "failed")
    return {"sent": sent[0], "dead": dead[0], "hostile": hostile[0]}
