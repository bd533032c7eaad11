"""Stops worker processes with SIGTERM under load, and checks that no attempt is lost and none is repeated.

    python tests/acceptance/drain_run.py --stops 50

Two `homing worker` processes share one store and send webhooks to a server that takes its time. In each
round, one of them gets a SIGTERM while it has attempts in flight, must end with exit code 0, and is replaced.
At the end, every notification must have been sent by exactly one attempt.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import msgspec

from homing import Homing, OutcomeKind, SendResult, Status

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.webhook_load import CONFIG, WebhookEndpoint, WorkerProcess
from support.worker_fleet import show

WORKERS = 2


class DrainCount(msgspec.Struct, kw_only=True):
    """What became of the notifications."""

    stops: int
    busy_stops: int
    """Number of stops while the server was answering requests."""
    accepted: int
    delivered: int
    lost_attempts: int
    other_failures: int
    """Number of attempts that ended neither as accepted nor as lost. Must be 0."""
    repeated: int
    """Number of notifications that the server got more than once. Must be 0."""
    exit_codes: dict[str, int]

    @property
    def good(self) -> bool:
        return (
            self.accepted == self.delivered
            and not (self.lost_attempts or self.other_failures or self.repeated)
            and set(self.exit_codes) <= {"exit code 0"}
        )


async def _send(homing: Homing, url: str, number: int, accepted: list[str]) -> None:
    request = {"recipient": {"url": url}, "channel": "webhook", "content": {"body": "hi"}}
    requests = (request for _ in range(number))
    async for result in homing.send_many(requests):
        assert isinstance(result, SendResult), result
        accepted.append(result.id)


async def run(
    folder: Path, stops: int, per_stop: int, seed: int, store: str = "", *, progress: bool = False
) -> DrainCount:
    """Runs once. The store is a file in `folder`, unless its address is given."""
    rng, accepted, busy, codes = random.Random(seed), list[str](), 0, Counter[str]()
    server = WebhookEndpoint(rng)
    url = f"{await server.start()}/204/0"
    config = folder / "homing.toml"
    config.write_text(CONFIG.format(store=store or folder / "homing.db", lease_ms=30_000, timeout_ms=20_000))
    async with Homing(config_file=config) as homing:
        workers = [WorkerProcess(config, number) for number in range(WORKERS)]
        try:
            for number in range(stops):
                chosen = rng.randrange(WORKERS)
                await workers[chosen].started()
                await _send(homing, url, per_stop, accepted)
                async with asyncio.timeout(60):
                    await server.busy.wait()
                await asyncio.sleep(rng.uniform(0.0, 0.2))
                busy += server.answering > 0
                codes[await workers[chosen].stop()] += 1
                workers[chosen] = WorkerProcess(config, WORKERS + number)
                if progress:
                    print(f"\rstopped {number + 1}/{stops}", end="", file=sys.stderr)
            for id_ in accepted:
                await homing.wait(id_, timeout_ms=120_000)
        finally:
            for worker in workers:
                await worker.started()
                codes[await worker.stop()] += 1
            server.close()
        histories = [await homing.history(id_) for id_ in accepted]
    outcomes = Counter(attempt.outcome for one in histories for attempt in one.attempts)
    lost, taken = outcomes.pop(OutcomeKind.LOST, 0), outcomes.pop(OutcomeKind.ACCEPTED, 0)
    assert taken <= len(accepted)
    return DrainCount(
        stops=stops,
        busy_stops=busy,
        accepted=len(accepted),
        delivered=sum(one.notification.status is Status.DELIVERED for one in histories),
        lost_attempts=lost,
        other_failures=sum(outcomes.values()),
        repeated=sum(number > 1 for number in server.requests.values()),
        exit_codes=dict(codes),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--stops", type=int, default=50)
    parser.add_argument("--per-stop", type=int, default=100, help="notifications before each stop")
    parser.add_argument("--store", default="", help="address of a PostgreSQL database instead of a file")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)))
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        work = run(Path(folder), options.stops, options.per_stop, options.seed, options.store, progress=True)
        report = asyncio.run(work)
    print(f"\nseed {options.seed}, {time.monotonic() - began:.1f} s")
    show(report)
    print("no attempt was lost" if report.good else "SOMETHING IS WRONG")
    return 0 if report.good else 1


if __name__ == "__main__":
    sys.exit(main())
