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
from homing.core.content.templates import Template, TemplateParts
from homing.core.lifecycle.outcomes import Outcome
from homing.core.notifications import Channel, OutcomeKind
from homing.core.ports.providers import Delivery
from homing.core.request_decoding import read_request
from homing.core.retry.policy import PolicyPatch, Rule
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


class SimulatedProvider:
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
        self.pigeon, self.hawk = SimulatedProvider("pigeon"), SimulatedProvider("hawk")
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


def furnish(site: DashboardSite) -> tuple[tuple[str, str], ...]:
    """Stores templates, recipients, rules, keys, a forced breaker, a split and a job.

    Returns the addresses of the screens that show one of them, and their names.
    """
    batch: list[str] = []
    dead = site.send("nobody-a@example.org", "nobody-b@example.org", type="receipt")
    site.wait_for(dead, "failed")

    async def store(homing: Homing) -> str:
        await _store_templates(homing)
        await _store_recipients(homing)
        await homing.keys.create("default", "Ada, on call", ["read", "operate"], who="grace")
        patches = [PolicyPatch(max_attempts=4, base_ms=5_000), PolicyPatch(max_attempts=8, base_ms=5_000)]
        for patch, why in zip(patches, ("invoices are urgent", "four were too few"), strict=True):
            rule = Rule(name="invoices", type="invoice", policy=patch)
            await homing.policies.set(rule, who="grace", why=why)
        shares = {"pigeon": 80, "hawk": 20}
        day = timedelta(days=1)
        await homing.splits.set("email", shares, who="grace", why="hawk is on trial", lasting=day)
        await homing.force_breaker("console", "closed", who="grace", why="it never fails", lasting=day)
        sent = await homing.submit(
            read_request(
                {
                    "recipients": [{"email": f"member{i}@example.org"} for i in range(5)],
                    "channel": "email",
                    "type": "newsletter",
                    "content": {"subject": "News", "body": "All is well."},
                }
            )
        )
        batch.append(sent.batch_id)
        chosen = {"statuses": ["failed"], "type": "receipt"}
        job = await homing.jobs.start(
            "default", "acknowledge", chosen, who="grace", why="the addresses are wrong", rate_per_second=0.1
        )
        await homing.jobs.stop("default", job.id, who="grace")
        return job.id

    job = site.on_loop(store)
    return (
        (f"batches/{batch[0]}", "batch"),
        (f"jobs/{job}", "job"),
        ("templates/order_shipped", "template"),
        ("templates?check=1", "templates-check"),
        ("recipients?id=ada", "recipient"),
        ("policies?type=invoice", "policies-rule"),
        ("dead-letters?reason=BAD_RECIPIENT", "dead-letters-filter"),
        ("find?q=order%3DA-1001", "find-metadata"),
        ("find?q=nothing-like-this", "find-nothing"),
    )


async def _store_templates(homing: Homing) -> None:
    for version in ("Order {{ order }}", "Order {{ order }} is on its way"):
        english = TemplateParts(
            subject=version,
            html="<h1>Hello {{ name }}</h1><p>Order <b>{{ order }}</b> is on its way.</p>",
            text="Hello {{ name }}, order {{ order }} is on its way.",
        )
        german = TemplateParts(
            subject="Bestellung {{ order }}",
            html="<h1>Hallo {{ name }}</h1><p>Die Bestellung <b>{{ order }}</b> ist unterwegs.</p>",
            text="Hallo {{ name }}, die Bestellung {{ order }} ist unterwegs.",
        )
        sms = TemplateParts(body="Order {{ order }} is on its way.")
        template = Template(
            key="order_shipped",
            locales={
                "en-US": {Channel.EMAIL: english, Channel.SMS: sms},
                "de-DE": {Channel.EMAIL: german, Channel.SMS: sms},
            },
            sample={"name": "Ada", "order": "A-1001"},
        )
        await homing.templates.put(template, who="grace")


async def _store_recipients(homing: Homing) -> None:
    devices = [
        {"token": "a1b2c3d4e5f6a7b8c9d0", "platform": "ios", "active": True},
        {"token": "f0e1d2c3b4a5968778", "platform": "android", "active": False},
    ]
    for id in ("ada", "grace", "linus"):
        await homing.recipients.put(
            {
                "id": id,
                "email": f"{id}@example.org",
                "locale": "en-US",
                "devices": devices if id == "ada" else [],
            },
            who="grace",
        )
    await homing.recipients.prefer("ada", category="marketing", channel="email", allowed=False, who="ada")
    await homing.recipients.suppress("email", "old@example.org", why="mailbox is closed", who="grace")
