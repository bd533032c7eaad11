"""Sends webhooks over real sockets to endpoints with every kind of fault, and checks what they received.

    python tests/acceptance/fault_run.py --notifications 10000

Each notification has a fate, which its URL names. With `on_timeout = "hold"` nothing may be accepted twice,
nothing may be lost, and every fate has one correct end.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import AsyncExitStack
from email.utils import formatdate
from pathlib import Path

import msgspec

from homing import Filter, Homing, SendResult, Status
from homing.testing import fault_server
from homing.testing.fault_server import FaultServer, ReceivedRequest, ServerAction

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
TIMEOUT_MS = 15_000
SERVERS = 16
MAX_ATTEMPTS = 3
SETTLED_WITHIN_S = 600.0

CONFIG = """
store = "{folder}/homing.db"

[http]
connect_timeout_ms = "10s"
allow_http = true
allow_networks = ["127.0.0.0/8"]

[sinks.log]
events = []

[slots]
standard = 96

[providers.webhook]
secret = "{secret}"
max_in_flight = 96
host_slots = 32

[[rules]]
name = "held"
max_attempts = {attempts}
base_ms = "50ms"
cap_ms = "200ms"
timeout_ms = {timeout_ms}
on_timeout = "hold"
"""


class Fate(msgspec.Struct, frozen=True, kw_only=True):
    """The endpoint's behavior at each attempt, and the status in which it must end."""

    acts: tuple[Callable[[], ServerAction], ...]
    """Behavior by attempt. The last one is repeated."""
    ends: Status
    attempts: int
    taken: int
    """How often the endpoint has accepted it, by its own count: never more than once."""
    share: int = 4
    races: bool = False
    """The endpoint closes connections that look open. A request written then is in doubt, not accepted."""

    @property
    def fails(self) -> bool:
        return self.ends is not Status.DELIVERED or self.attempts > 1

    def met_by(self, status: Status, attempts: int, taken: int) -> bool:
        raced = self.races and (status, attempts, taken) == (Status.IN_DOUBT, 1, 0)
        return raced or (status, attempts, taken) == (self.ends, self.attempts, self.taken)


def _same(act: ServerAction) -> Callable[[], ServerAction]:
    return lambda: act


def _in_a_second() -> ServerAction:
    return fault_server.throttle(formatdate(time.time() + 1, usegmt=True), 503)


_OK = _same(fault_server.OK)
_NEVER = _same(fault_server.answer(500))

FATES: dict[str, Fate] = {
    "taken": Fate(acts=(_OK,), ends=Status.DELIVERED, attempts=1, taken=1, share=30),
    "closes after its answer": Fate(
        acts=(_same(fault_server.CLOSE_AFTER_ANSWER),), ends=Status.DELIVERED, attempts=1, taken=1, races=True
    ),
    "fails once": Fate(acts=(_NEVER, _OK), ends=Status.DELIVERED, attempts=2, taken=1),
    "429 in seconds": Fate(
        acts=(_same(fault_server.throttle("1")), _OK), ends=Status.DELIVERED, attempts=2, taken=1
    ),
    "503 with a date": Fate(acts=(_in_a_second, _OK), ends=Status.DELIVERED, attempts=2, taken=1),
    "a page": Fate(acts=(_same(fault_server.html_page(200)),), ends=Status.DELIVERED, attempts=1, taken=1),
    "huge": Fate(
        acts=(_same(fault_server.huge_body(200, 300_000)),), ends=Status.DELIVERED, attempts=1, taken=1
    ),
    "a length too long": Fate(
        acts=(_same(fault_server.wrong_length(200, b"ok", length=99)),),
        ends=Status.DELIVERED,
        attempts=1,
        taken=1,
    ),
    "a length too short": Fate(
        acts=(_same(fault_server.wrong_length(200, b"ok and more", length=2)),),
        ends=Status.DELIVERED,
        attempts=1,
        taken=1,
        races=True,
    ),
    "chunked nonsense": Fate(
        acts=(_same(fault_server.CHUNKED_NONSENSE),), ends=Status.DELIVERED, attempts=1, taken=1
    ),
    "resets before reading": Fate(
        acts=(_same(fault_server.RESET_BEFORE_READING),), ends=Status.IN_DOUBT, attempts=1, taken=0
    ),
    "resets after reading": Fate(
        acts=(_same(fault_server.RESET_AFTER_READING),), ends=Status.IN_DOUBT, attempts=1, taken=1
    ),
    "hangs before reading": Fate(
        acts=(_same(fault_server.HANG_BEFORE_READING),), ends=Status.IN_DOUBT, attempts=1, taken=0
    ),
    "hangs after reading": Fate(
        acts=(_same(fault_server.HANG_AFTER_READING),), ends=Status.IN_DOUBT, attempts=1, taken=1
    ),
    "drips": Fate(
        acts=(_same(fault_server.drip(fault_server.OK, 1_000)),), ends=Status.IN_DOUBT, attempts=1, taken=1
    ),
    "empty": Fate(acts=(_same(fault_server.EMPTY),), ends=Status.IN_DOUBT, attempts=1, taken=1),
    "garbage": Fate(acts=(_same(fault_server.GARBAGE),), ends=Status.IN_DOUBT, attempts=1, taken=1),
    "half a head": Fate(acts=(_same(fault_server.HALF_A_HEAD),), ends=Status.IN_DOUBT, attempts=1, taken=1),
    "gone": Fate(acts=(_same(fault_server.answer(410)),), ends=Status.FAILED, attempts=1, taken=0),
    "always fails": Fate(acts=(_NEVER,), ends=Status.FAILED, attempts=MAX_ATTEMPTS, taken=0),
    "redirects": Fate(
        acts=(_same(fault_server.answer(302, headers={"location": "/taken/0"})),),
        ends=Status.FAILED,
        attempts=MAX_ATTEMPTS,
        taken=0,
    ),
    "no listener": Fate(acts=(), ends=Status.FAILED, attempts=MAX_ATTEMPTS, taken=0),
    "no TLS where there should be": Fate(acts=(), ends=Status.FAILED, attempts=MAX_ATTEMPTS, taken=0),
}
_NOT_TAKEN = (b"HTTP/1.1 3", b"HTTP/1.1 4", b"HTTP/1.1 5")


class Endpoints:
    """The servers, and their own count of accepted requests."""

    def __init__(self) -> None:
        self.taken: Counter[str] = Counter()
        self.tries: Counter[str] = Counter()
        self.refusing = fault_server.refusing_url()
        self.servers: list[FaultServer] = []

    def script(self, received: ReceivedRequest) -> ServerAction:
        fate = FATES[_named(received.path)]
        key = received.headers["webhook-id"]
        self.tries[key] += 1
        act = fate.acts[min(self.tries[key], len(fate.acts)) - 1]()
        if act.reads and not act.writes.startswith(_NOT_TAKEN):
            self.taken[key] += 1
        return act

    def url(self, name: str, number: int) -> str:
        base = self.servers[number % len(self.servers)].url
        if FATES[name].races:
            base = base.replace(
                "127.0.0.1", "localhost"
            )  # its own connections, so that no other fate is affected
        elif name == "no listener":
            base = self.refusing
        elif name == "no TLS where there should be":
            base = base.replace("http:", "https:")
        if FATES[name].fails:
            # An endpoint of its own, because failures slow down their endpoint and open its breaker.
            base = base.replace("127.0.0.1", f"127.1.{number // 250}.{number % 250 + 1}")
        return f"{base}/{name.replace(' ', '-')}/{number}"


def _named(path: str) -> str:
    return path.split("/")[1].replace("-", " ")


class Report(msgspec.Struct, kw_only=True):
    """The result of a run."""

    accepted: int
    ended: dict[str, int]
    taken_twice: int
    lost: int
    """Accepted, but neither ended nor in doubt."""
    wrong: dict[str, list[str]]
    """Fate → statuses of notifications that ended differently."""
    connections: int
    seconds: float

    @property
    def good(self) -> bool:
        return not (self.taken_twice or self.lost or self.wrong) and self.accepted > 0


async def run(folder: Path, notifications: int, seed: int = 1, *, progress: bool = False) -> Report:
    """Runs once, and ends at most ten minutes after the last acceptance."""
    config = folder / "homing.toml"
    config.write_text(
        CONFIG.format(folder=folder, secret=SECRET, attempts=MAX_ATTEMPTS, timeout_ms=TIMEOUT_MS)
    )
    fates = _deal(notifications, random.Random(seed))
    ends = Endpoints()
    began = time.monotonic()
    async with AsyncExitStack() as stack:
        for _ in range(SERVERS):
            ends.servers.append(await stack.enter_async_context(FaultServer(ends.script, listen="0.0.0.0")))
        homing = await stack.enter_async_context(Homing(config_file=config, worker=True))
        ids = await _send(homing, fates, ends)
        await _settled(homing, len(ids), progress)
        return await _count(homing, dict(zip(ids, fates, strict=True)), ends, began)


def _deal(notifications: int, rng: random.Random) -> list[str]:
    """Distributes the fates, each at least once if there are enough notifications."""
    names = [*FATES]
    some = rng.choices(names, [fate.share for fate in FATES.values()], k=notifications)
    some[: len(names)] = names[: len(some)]
    rng.shuffle(some)
    return some


async def _send(homing: Homing, fates: list[str], ends: Endpoints) -> list[str]:
    requests = (
        {"recipient": {"url": ends.url(name, n)}, "channel": "webhook", "content": {"data": {"n": n}}}
        for n, name in enumerate(fates)
    )
    ids = []
    async for result in homing.send_many(requests):
        assert isinstance(result, SendResult), result
        ids.append(result.id)
    return ids


async def _settled(homing: Homing, total: int, progress: bool) -> None:
    until = time.monotonic() + SETTLED_WITHIN_S
    over = {fate.ends.value for fate in FATES.values()}
    while time.monotonic() < until:
        counts = await homing.queue_counts()
        ended = sum(count for status, count in counts.items() if status in over)
        if progress:
            print(f"\r{ended}/{total}", end="", file=sys.stderr)
        if ended >= total:
            return
        await asyncio.sleep(0.2)


async def _count(homing: Homing, fates: dict[str, str], ends: Endpoints, began: float) -> Report:
    wrong: dict[str, list[str]] = defaultdict(list)
    ended: Counter[str] = Counter()
    lost = 0
    cursor: str | None = None
    seen: set[str] = set()
    while True:
        page = await homing.list(Filter(), limit=500, cursor=cursor)
        for one in page.items:
            seen.add(one.id)
            fate = FATES[fates[one.id]]
            ended[one.status.value] += 1
            found = (one.status, one.attempt_count, ends.taken[one.id])
            if not fate.met_by(*found):
                wrong[fates[one.id]].append(
                    f"{one.status} after {found[1]}, taken {found[2]}: {one.last_error}"
                )
            lost += one.status in (Status.PENDING, Status.SENDING, Status.RETRYING)
        cursor = page.cursor
        if cursor is None:
            break
    return Report(
        accepted=len(fates),
        ended=dict(ended),
        taken_twice=sum(1 for count in ends.taken.values() if count > 1),
        lost=lost + len(fates.keys() - seen),
        wrong=dict(wrong),
        connections=sum(server.connections for server in ends.servers),
        seconds=time.monotonic() - began,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--notifications", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = asyncio.run(run(Path(folder), given.notifications, given.seed, progress=True))
    print("\n" + msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    return 0 if report.good else 1


if __name__ == "__main__":
    sys.exit(main())
