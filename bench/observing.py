"""What it costs to be watched: the whole line over SQLite with and without the Prometheus observer.

    python bench/observing.py [--directory DIR] [--rows N] [--rounds N]

Rounds alternate in one process, so both see the same machine. Processor time per notification is what
counts; the figure to read is the ratio. Also what a look at /metrics costs. Ends with an error if the
observer has not counted every notification.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

from homing import Homing, Outcome, OutcomeKind
from homing.compose import list_provider
from homing.core.ports import Delivery
from homing.observing.metrics import Metrics

_LANE = "standard.email"


async def take(delivery: Delivery) -> Outcome:
    """The quickest provider there is."""
    return Outcome(OutcomeKind.ACCEPTED, provider_message_id=delivery.notification_id)


async def line(path: Path, rows: int, metrics: Metrics | None) -> tuple[float, float]:
    """Accepts and delivers so many; microseconds of processor time and of the clock for each."""
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
            sys.exit(f"{rows} accepted, but {counts}")
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
    print(f"  a look at /metrics: {took_ms:.1f} ms, {len(page):,} bytes", flush=True)


async def run(folder: Path, rows: int, rounds: int) -> None:
    plain: list[tuple[float, float]] = []
    watched: list[tuple[float, float]] = []
    await line(folder / "warm-up.db", min(rows, 1_000), None)
    for number in range(rounds):
        plain.append(await line(folder / f"plain-{number}.db", rows, None))
        watched.append(await line(folder / f"watched-{number}.db", rows, Metrics()))
    ratios = [with_[0] / without[0] for with_, without in zip(watched, plain, strict=True)]
    least, least_watched = min(plain)[0], min(watched)[0]
    print(f"accept → claim → send → settle, {rows:,} notifications, {rounds} rounds each, in turns")
    print(f"  without an observer  {least:>8.1f} µs of processor time each")
    print(f"  with Prometheus      {least_watched:>8.1f} µs")
    print(f"  ratio of the leanest {least_watched / least:>8.3f}   (by rounds: {sorted_(ratios)})")
    print(f"  median ratio         {statistics.median(ratios):>8.3f}")


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
