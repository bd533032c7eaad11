"""Worker processes to be mistreated, and the count of what is left afterwards."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from homing import Homing, SendResult, Status

CONFIG = """
store = "{store}"

[worker]
poll_ms = "100ms"
lease_ms = "{lease_ms}ms"

[slots]
standard = 16

[providers.outfile]
kind = "file"
path = "{folder}/sent.jsonl"
channels = ["email"]

[[rules]]
name = "quick"
max_attempts = 50
base_ms = "50ms"
cap_ms = "200ms"
timeout_ms = "400ms"
"""

WORKERS = 3
LEASE_MS = 1000
ENDED = {Status.SENT.value, Status.FAILED.value}


class Fleet:
    """Three `homing worker` processes that share one store and deliver into one file of JSON lines."""

    def __init__(self, folder: Path, store: str) -> None:
        self.config = folder / "homing.toml"
        self.config.write_text(CONFIG.format(folder=folder, store=store, lease_ms=LEASE_MS))
        self._log = (folder / "workers.log").open("ab")
        self._workers: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self._workers = [self._start() for _ in range(WORKERS)]

    def kill_one(self, chance: random.Random) -> None:
        self.kill(chance.choice(self._workers))

    def kill(self, worker: subprocess.Popen[bytes]) -> None:
        """With `kill -9`; another takes its place."""
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        self._workers[self._workers.index(worker)] = self._start()

    @contextmanager
    def suspended(self, chance: random.Random) -> Iterator[subprocess.Popen[bytes]]:
        """Stops a process as a suspended machine is stopped: it wakes up and knows nothing of it."""
        worker = chance.choice(self._workers)
        worker.send_signal(signal.SIGSTOP)
        try:
            yield worker
        finally:
            worker.send_signal(signal.SIGCONT)  # without effect on one that was killed meanwhile

    def stop(self) -> None:
        for worker in self._workers:
            worker.terminate()
        for worker in self._workers:
            worker.wait(timeout=120)
        self._log.close()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "homing.cli", "--config", str(self.config), "worker"]
        return subprocess.Popen(command, stdout=self._log, stderr=self._log)


class Count(msgspec.Struct, kw_only=True):
    """What was accepted, held against what the store and the provider have."""

    accepted: int
    accounted: int
    sent: int
    lost: int
    sends: int
    repeated: int
    """Notifications that were sent more than once: cut off between send and settlement."""
    oversent: int
    """Notifications with more sends than attempts, or two sends of one attempt: must be 0."""

    @property
    def good(self) -> bool:
        return self.lost == 0 and self.oversent == 0 and self.accepted == self.accounted == self.sent


async def send_some(homing: Homing, count: int, accepted: list[str]) -> None:
    """Accepts that many more; their ids are kept as soon as they are promised.

    Each request has its key: one whose answer was lost is asked again, and is the same one.
    """
    first = len(accepted)
    requests = (
        {
            "recipient": f"user{number}@example.org",
            "channel": "email",
            "content": {"body": "hi"},
            "idempotency_key": f"request-{number}",
        }
        for number in range(first, first + count)
    )
    async for result in homing.send_many(requests):
        assert isinstance(result, SendResult), result
        accepted.append(result.id)


async def settled(homing: Homing, total: int, within_s: float = 600.0) -> None:
    """Waits until everything has ended, or long enough."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        counts = await homing.queue_counts()
        if sum(n for status, n in counts.items() if status in ENDED) >= total:
            return
        await asyncio.sleep(0.1)


async def count(homing: Homing, folder: Path, accepted: list[str]) -> Count:
    """Holds what was accepted against what the store and the provider have."""
    lines = (folder / "sent.jsonl").read_bytes().splitlines()
    tries = Counter((line["notificationId"], line["attempt"]) for line in map(msgspec.json.decode, lines))
    sends = Counter(id_ for id_, _ in tries.elements())
    doubled = {id_ for (id_, _), n in tries.items() if n > 1}
    counts = await homing.queue_counts()
    oversent = lost = 0
    for id_ in accepted:
        notification = await homing.get(id_)
        lost += sends[id_] == 0
        oversent += sends[id_] > notification.attempt_count or id_ in doubled
    return Count(
        accepted=len(accepted),
        accounted=sum(counts.values()),
        sent=counts[Status.SENT.value],
        lost=lost,
        sends=len(lines),
        repeated=sum(n > 1 for n in sends.values()),
        oversent=oversent,
    )


def show(report: msgspec.Struct) -> None:
    """The report as lines."""
    for name, value in msgspec.to_builtins(report).items():
        for inner, number in value.items() if isinstance(value, dict) else ((name, value),):
            print(f"{inner:>18}  {number}")
