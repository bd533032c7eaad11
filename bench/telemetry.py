"""Measures the cost of metrics: the whole delivery path on SQLite with and without the Prometheus observer.

    python bench/telemetry.py [--directory DIR] [--rows N] [--rounds N]

Rounds alternate in one process, so other load affects both. The figures to read are the ratio of CPU time
with and without the observer, and the share of time spent inside the observer, which a busy machine does
not affect. The script also times a request for /metrics. It fails if the observer has not counted every
notification.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from homing import Homing, Outcome, OutcomeKind
from homing.compose import list_provider
from homing.core.lifecycle.claims import Acceptance, ClaimBatch, Submission
from homing.core.ports.observers import SettledClaim
from homing.core.ports.providers import Delivery
from homing.telemetry.metrics import Metrics

_LANE = "standard.email"


async def take(delivery: Delivery) -> Outcome:
    """Accepts every delivery at once, like the fastest possible provider."""
    return Outcome(OutcomeKind.ACCEPTED, provider_message_id=delivery.notification_id)


class Timed(Metrics):
    """Metrics that also measure the time spent in them."""

    spent_s = 0.0

    def accepted(self, batch: Sequence[Submission], answers: Sequence[Acceptance]) -> None:
        began = time.perf_counter()
        super().accepted(batch, answers)
        self.spent_s += time.perf_counter() - began

    def claimed(self, batch: ClaimBatch) -> None:
        began = time.perf_counter()
        super().claimed(batch)
        self.spent_s += time.perf_counter() - began

    def settled(self, batch: Sequence[SettledClaim], refused: Collection[str]) -> None:
        began = time.perf_counter()
        super().settled(batch, refused)
        self.spent_s += time.perf_counter() - began


async def line(path: Path, rows: int, metrics: Metrics | None) -> tuple[float, float]:
    """Accepts and delivers `rows` notifications. Returns CPU and wall time per notification in µs."""
    provider = list_provider("mail", take, ["email"], max_in_flight=1_000)
    observers = [metrics] if metrics is not None else []
    async with Homing(
        path, providers={"mail": provider}, observers=observers, slots={"standard": 500}, sinks={"log": {}}
    ) as homing:
        if metrics is not None:
            metrics.watch(homing)
        requests = [
            {"recipient": f"p{n}@example.org", "channel": "email", "content": {"body": "Hello"}}
            for n in range(rows)
        ]
        cpu_s, clock_s = time.process_time(), time.perf_counter()
        async for _ in homing.send_many(requests):
            pass
        while (await homing.process(rows)).processed:
            pass
        cpu_s, clock_s = time.process_time() - cpu_s, time.perf_counter() - clock_s
        counts = await homing.queue_counts()
        if counts["sent"] != rows:
            sys.exit(f"{rows} were accepted, but the counts are {counts}")
        if metrics is not None:
            await check(metrics, rows)
    return 1e6 * cpu_s / rows, 1e6 * clock_s / rows


async def check(metrics: Metrics, rows: int) -> None:
    began = time.perf_counter()
    page = (await metrics.page()).decode()
    took_ms = 1000 * (time.perf_counter() - began)
    wanted = f'homing_settled_total{{lane="{_LANE}",status="sent",tenant="default"}} {float(rows)}'
    if wanted not in page:
        sys.exit(f"not every notification was counted; missing: {wanted}")
    print(f"  one request for /metrics: {took_ms:.1f} ms, {len(page):,} bytes", flush=True)


async def run(folder: Path, rows: int, rounds: int) -> None:
    plain: list[tuple[float, float]] = []
    watched: list[tuple[float, float]] = []
    inside: list[float] = []
    await line(folder / "warm-up.db", min(rows, 1_000), None)
    for number in range(rounds):
        plain.append(await line(folder / f"plain-{number}.db", rows, None))
        timed = Timed()
        watched.append(await line(folder / f"watched-{number}.db", rows, timed))
        inside.append(1e6 * timed.spent_s / rows)
    ratios = [with_[0] / without[0] for with_, without in zip(watched, plain, strict=True)]
    least, least_watched = min(plain)[0], min(watched)[0]
    print(f"accept → claim → send → settle, {rows:,} notifications, {rounds} alternating rounds each")
    print(f"  without an observer  {least:>8.1f} µs of CPU time each")
    print(f"  with Prometheus      {least_watched:>8.1f} µs")
    print(f"  ratio of the minima  {least_watched / least:>8.3f}   (per round: {sorted_(ratios)})")
    print(f"  median ratio         {statistics.median(ratios):>8.3f}")
    print(
        f"  inside the observer  {min(inside):>8.1f} µs each: {100 * min(inside) / least:.1f} % of the total"
    )


def sorted_(ratios: list[float]) -> str:
    return ", ".join(f"{ratio:.3f}" for ratio in sorted(ratios))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--directory", type=Path, help="where the files go (default: a temporary folder)")
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        asyncio.run(run(Path(folder), options.rows, options.rounds))


if __name__ == "__main__":
    main()
