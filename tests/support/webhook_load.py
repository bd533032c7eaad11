"""Load on worker processes, and a ledger of it outside the database.

A sender records what was acknowledged, and a webhook endpoint what it received and answered. Both are
compared with the store at the end.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Self

from msgspec import Struct, field

from homing import Homing, Status
from homing.core.errors import NotFound, StoreError
from homing.core.request_decoding import read_request
from support.guarded_folder import GuardedFolder

CONFIG = """
store = "{store}"

[worker]
lease_ms = "{lease_ms}ms"

[http]
allow_networks = ["127.0.0.0/8"]
allow_http = true

[providers.hooks]
kind = "webhook"
secret = "whsec_c2VjcmV0IG9mIHRoZSBsb2FkIHJ1bnM="
host_slots = 64

[[rules]]
name = "quick"
max_attempts = 20
base_ms = "50ms"
cap_ms = "500ms"
timeout_ms = "{timeout_ms}ms"
"""
ACCEPTED, REFUSED = "204", "413"
"""Answers of the endpoint. Homing does not retry after a 413."""
HELD = "held"
_ENDED = {Status.DELIVERED: ACCEPTED, Status.FAILED: REFUSED}
"""Final status → the answer that must have led to it."""
_STORE_LOG = "homing.store"
_RETRY_S = 0.1
_READS = 16


class Acknowledgement(Struct, frozen=True):
    """The sender's record of one accepted request."""

    number: int
    id: str
    tenant: str
    duplicate: bool
    """True if the request was recognized by its idempotency key."""
    begun_at: float
    """Start of the call that returned the id. Earlier calls with the same idempotency key had failed."""
    at: float


class Receipt(Struct, frozen=True):
    """The endpoint's record of one request."""

    number: int
    id: str
    answer: str
    at: float


class WebhookEndpoint:
    """Answers `/204/N` and `/413/N` with that status after a while, and `/held/N` once `gate` is set."""

    def __init__(self, rng: random.Random, latencies_s: Sequence[float] = (0.0, 0.02, 0.1, 0.3)) -> None:
        self._rng = rng
        self._latencies_s = latencies_s
        self.receipts: list[Receipt] = []
        self.answering = 0
        self.busy = asyncio.Event()
        """Set while the endpoint has requests to answer."""
        self.gate = asyncio.Event()
        self.held_url = ""
        """URL for requests that are held, so that they do not use up the slots of the other ones."""

    async def start(self) -> str:
        """Starts to listen, and returns the URL without a path."""
        self._servers = [await asyncio.start_server(self._serve, "127.0.0.1", 0) for _ in range(2)]
        url, self.held_url = (
            f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in self._servers
        )
        return url

    def close(self) -> None:
        for server in self._servers:
            server.close()

    @property
    def requests(self) -> Counter[str]:
        """The number of requests per notification."""
        return Counter(receipt.id for receipt in self.receipts)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").splitlines()
                fields = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
                await reader.readexactly(int(fields.get("content-length", "0")))
                _, answer, number = head[0].split()[1].split("/")
                self.receipts.append(Receipt(int(number), fields["webhook-id"], answer, time.monotonic()))
                self.answering += 1
                self.busy.set()
                await asyncio.sleep(self._rng.choice(self._latencies_s))
                if answer == HELD:
                    await self.gate.wait()
                self.answering -= 1
                if not self.answering:
                    self.busy.clear()
                status = "413 Content Too Large" if answer == REFUSED else "204 No Content"
                length = "Content-Length: 0\r\n" if answer == REFUSED else ""
                writer.write(f"HTTP/1.1 {status}\r\n{length}\r\n".encode())
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            writer.close()  # also when the loop is closed


async def until(condition: Callable[[], bool], within_s: float) -> None:
    """Waits until a condition holds. Raises `TimeoutError` after `within_s`."""
    for _ in range(round(within_s * 100)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise TimeoutError


class WorkerProcess:
    """A `homing worker` process."""

    def __init__(self, config: Path, number: int) -> None:
        self._log = config.with_name(f"worker-{number}.log")
        command = [sys.executable, "-m", "homing.cli", "--config", str(config), "worker"]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    @property
    def log(self) -> str:
        return self._log.read_text()

    async def started(self) -> None:
        """Waits until the process handles signals. Before that, a SIGTERM ends it at once."""
        for _ in range(6_000):
            if " started: " in self.log:
                return
            assert self.process.poll() is None, self.log
            await asyncio.sleep(0.01)
        raise TimeoutError(self.log)

    async def stop(self) -> str:
        """Sends a SIGTERM and returns the exit code, in words."""
        self.process.terminate()
        return f"exit code {await asyncio.to_thread(self.process.wait, 120)}"


@asynccontextmanager
async def workers(config: Path, number: int) -> AsyncIterator[list[WorkerProcess]]:
    """Runs worker processes meanwhile. They end with this process."""
    running = [WorkerProcess(config, index) for index in range(number)]
    with GuardedFolder("homing-workers-") as guard:
        for worker in running:
            guard.watch(worker.process)
        try:
            for worker in running:
                await worker.started()
            yield running
        finally:
            for worker in running:
                worker.process.kill()
                guard.ended(worker.process)


class Sender:
    """Sends at a steady rate, each request until it is acknowledged, and records the acknowledgements."""

    def __init__(
        self,
        homing: Homing,
        url: str,
        rate: float,
        rng: random.Random,
        *,
        limit: int | None = None,
        held_url: str = "",
    ) -> None:
        """`limit` is the number of requests after which `sending` sends no more."""
        self._limit = limit
        self._homing = homing
        self._url = url
        self._held_url = held_url
        self._rate = rate
        self._rng = rng
        self._sends: set[asyncio.Task[None]] = set()
        self._flows = True
        self.tenants: Sequence[str] = ("default",)
        """The tenants of the next sends."""
        self.begun: dict[int, float] = {}
        """Number of each request → start of its first call."""
        self.acknowledged: list[Acknowledgement] = []
        self.errors: Counter[str] = Counter()
        self.slowest_call_s = 0.0

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        """Sends meanwhile. In the end, waits until every request is acknowledged."""
        flow = asyncio.create_task(self._flow())
        try:
            yield
            self._flows = False
            await flow
            await asyncio.gather(*self._sends)
        finally:
            flow.cancel()
            for send in self._sends:
                send.cancel()

    async def send(
        self,
        answer: str = "",
        tenant: str = "",
        *,
        send_at: datetime | None = None,
        again: Acknowledgement | None = None,
    ) -> Acknowledgement:
        """Sends one request until it is acknowledged.

        The tenant and the endpoint's answer are chosen by chance if they are not given. `again` repeats an
        earlier request.
        """
        number = len(self.begun) if again is None else again.number
        chosen = answer or self._rng.choice((ACCEPTED, ACCEPTED, REFUSED))
        url = self._held_url or self._url if chosen == HELD else self._url
        request = read_request(
            {
                "recipient": {"url": f"{url}/{chosen}/{number}"},
                "channel": "webhook",
                "content": {"body": "hi"},
                "idempotency_key": f"request-{number}",
                "send_at": send_at,
            }
        )
        tenant = tenant or self._rng.choice(self.tenants)
        begun = self.begun[number] = time.monotonic()
        while True:
            try:
                result = await self._homing.of(tenant).submit(request)
            except StoreError as error:
                self.errors[type(error).__name__] += 1
                self._measure(begun)
                await asyncio.sleep(_RETRY_S)
                begun = time.monotonic()
            else:
                self._measure(begun)
                now = time.monotonic()
                one = Acknowledgement(number, result.id, tenant, result.duplicate, begun, now)
                self.acknowledged.append(one)
                return one

    def _measure(self, begun: float) -> None:
        self.slowest_call_s = max(self.slowest_call_s, time.monotonic() - begun)

    async def _flow(self) -> None:
        began, sent = time.monotonic(), 0
        while self._flows:
            due = (time.monotonic() - began) * self._rate
            while sent < (due if self._limit is None else min(due, self._limit)):
                task = asyncio.create_task(self._record())
                self._sends.add(task)
                task.add_done_callback(self._sends.discard)
                sent += 1
            await asyncio.sleep(0.005)

    async def _record(self) -> None:
        await self.send()


class LossReports(logging.Handler):
    """Sums up what this process reports about acknowledged notifications that the store has lost."""

    def __init__(self) -> None:
        super().__init__()
        self.lost = 0

    def __enter__(self) -> Self:
        logging.getLogger(_STORE_LOG).addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger(_STORE_LOG).removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if found := re.search(r"has lost (\w+) notification", record.getMessage()):
            self.lost += 1 if found[1] == "a" else int(found[1])


class Audit(Struct, kw_only=True):
    """The acknowledged notifications, compared with the store and with the endpoint's record."""

    acknowledged: int
    lost: list[Acknowledgement] = field(default_factory=list)
    """Those that the store does not have."""
    unfinished: list[Acknowledgement] = field(default_factory=list)
    wrong: list[Acknowledgement] = field(default_factory=list)
    """Those whose status is not the result of what the endpoint answered to them."""
    doubled: list[Acknowledgement] = field(default_factory=list)
    """Those that the endpoint received more than once."""

    @property
    def flawless(self) -> bool:
        return not (self.lost or self.unfinished or self.wrong or self.doubled)


async def audit(
    homing: Homing, acknowledged: Sequence[Acknowledgement], endpoint: WebhookEndpoint, patience_s: float
) -> Audit:
    """Waits until the notifications have ended, at most `patience_s`, and compares."""
    found_statuses: dict[str, Status | None] = {}
    until = time.monotonic() + patience_s
    left = list(acknowledged)
    while left and time.monotonic() < until:
        found_statuses |= await statuses(homing, left)
        left = [one for one in left if found_statuses[one.id] not in (None, *_ENDED)]
        await asyncio.sleep(0.1)
    answers = defaultdict[str, list[str]](list)
    for receipt in endpoint.receipts:
        answers[receipt.id].append(ACCEPTED if receipt.answer == HELD else receipt.answer)
    found = Audit(acknowledged=len(acknowledged))
    for one in acknowledged:
        status = found_statuses[one.id]
        if status is None:
            found.lost.append(one)
        elif status not in _ENDED:
            found.unfinished.append(one)
        elif _ENDED[status] not in answers[one.id]:
            found.wrong.append(one)
        if len(answers[one.id]) > 1:
            found.doubled.append(one)
    return found


async def statuses(homing: Homing, those: Iterable[Acknowledgement]) -> dict[str, Status | None]:
    """Returns the status of each notification by its id, or None if the store does not have it."""
    enough = asyncio.Semaphore(_READS)

    async def read(one: Acknowledgement) -> tuple[str, Status | None]:
        async with enough:
            try:
                return one.id, (await homing.of(one.tenant).get(one.id)).status
            except NotFound:
                return one.id, None

    return dict(await asyncio.gather(*map(read, those)))
