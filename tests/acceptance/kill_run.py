"""Kills worker processes with `kill -9` at random moments and counts what is left: nothing may be lost.

    python tests/acceptance/kill_run.py --kills 200 --notifications 4000

Three `homing worker` processes share one SQLite file and deliver into one file of JSON lines, while this
process goes on sending. After the last kill the workers finish; then every accepted notification must be
accounted for, and nothing may have been sent more often than it was attempted.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import msgspec

from homing import Homing, SendResult, Status

CONFIG = """
store = "{folder}/homing.db"

[worker]
poll_ms = "100ms"
lease_ms = "1s"

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
ENDED = {Status.SENT.value, Status.FAILED.value}


class Report(msgspec.Struct, kw_only=True):
    """What a run found."""

    kills: int
    accepted: int
    accounted: int
    sent: int
    lost: int
    sends: int
    repeated: int
    """Notifications that were sent more than once: killed between send and settlement."""
    oversent: int
    """Notifications with more sends than attempts, or two sends of one attempt: must be 0."""
    seconds: float

    @property
    def good(self) -> bool:
        return self.lost == 0 and self.oversent == 0 and self.accepted == self.accounted == self.sent


class Fleet:
    """The worker processes."""

    def __init__(self, config: Path, log: Path) -> None:
        self._config = config
        self._log = log.open("ab")
        self._workers = [self._start() for _ in range(WORKERS)]

    def kill_one(self, chance: random.Random) -> None:
        index = chance.randrange(len(self._workers))
        self._workers[index].send_signal(signal.SIGKILL)
        self._workers[index].wait()
        self._workers[index] = self._start()

    def stop(self) -> None:
        for worker in self._workers:
            worker.terminate()
        for worker in self._workers:
            worker.wait(timeout=30)
        self._log.close()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "homing.cli", "--config", str(self._config), "worker"]
        return subprocess.Popen(command, stdout=self._log, stderr=self._log)


async def send_some(homing: Homing, count: int, accepted: list[str]) -> None:
    requests = (
        {"recipient": f"user{len(accepted) + n}@example.org", "channel": "email", "content": {"body": "hi"}}
        for n in range(count)
    )
    async for result in homing.send_many(requests):
        assert isinstance(result, SendResult), result
        accepted.append(result.id)


async def run(folder: Path, kills: int, notifications: int, seed: int, *, progress: bool = False) -> Report:
    """One run. Bounded: it ends after the kills and at most two minutes more."""
    config = folder / "homing.toml"
    config.write_text(CONFIG.format(folder=folder))
    chance = random.Random(seed)
    began = time.monotonic()
    accepted: list[str] = []
    async with Homing(config_file=config) as homing:
        fleet = Fleet(config, folder / "workers.log")
        try:
            for number in range(kills):
                await send_some(homing, notifications // kills, accepted)
                await asyncio.sleep(chance.uniform(0.0, 0.6))
                await asyncio.to_thread(fleet.kill_one, chance)
                if progress:
                    print(f"\rkilled {number + 1}/{kills}, accepted {len(accepted)}", end="", file=sys.stderr)
            await settled(homing, len(accepted))
        finally:
            await asyncio.to_thread(fleet.stop)
        return await count(homing, folder, accepted, kills, time.monotonic() - began)


async def settled(homing: Homing, total: int, within_s: float = 120.0) -> None:
    """Waits until everything has ended, or long enough."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        counts = await homing.queue_counts()
        if sum(n for status, n in counts.items() if status in ENDED) >= total:
            return
        await asyncio.sleep(0.2)


async def count(homing: Homing, folder: Path, accepted: list[str], kills: int, seconds: float) -> Report:
    """Holds what was accepted against what the store and the provider have."""
    lines = (folder / "sent.jsonl").read_bytes().splitlines()
    tries = Counter((line["notificationId"], line["attempt"]) for line in map(msgspec.json.decode, lines))
    sends = Counter(id_ for id_, _ in tries.elements())
    counts = await homing.queue_counts()
    oversent = lost = 0
    for id_ in accepted:
        notification = await homing.get(id_)
        lost += sends[id_] == 0
        twice = any(n > 1 for (sent_id, _), n in tries.items() if sent_id == id_) if sends[id_] > 1 else False
        oversent += sends[id_] > notification.attempt_count or twice
    return Report(
        kills=kills,
        accepted=len(accepted),
        accounted=sum(counts.values()),
        sent=counts[Status.SENT.value],
        lost=lost,
        sends=len(lines),
        repeated=sum(n > 1 for n in sends.values()),
        oversent=oversent,
        seconds=round(seconds, 1),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--notifications", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = run(Path(folder), options.kills, options.notifications, options.seed, progress=True)
        report = asyncio.run(work)
    print(f"\nseed {options.seed}")
    for name in report.__struct_fields__:
        print(f"{name:>10}  {getattr(report, name)}")
    print("nothing was lost" if report.good else "SOMETHING IS WRONG")
    return 0 if report.good else 1


if __name__ == "__main__":
    sys.exit(main())
