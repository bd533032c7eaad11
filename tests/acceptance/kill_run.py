"""Kills worker processes with `kill -9` at random moments, and counts lost notifications, which must be none.

    python tests/acceptance/kill_run.py --kills 200 --notifications 4000

Three `homing worker` processes share one SQLite file and deliver into one file of JSON lines, while this
process keeps sending. After the last kill the workers finish. Then every accepted notification must be
accounted for, and nothing may have been sent more often than it was attempted.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from pathlib import Path

from homing import Homing

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.worker_fleet import DeliveryCount, Fleet, count, send_some, settled, show


async def run(
    folder: Path, kills: int, notifications: int, seed: int, *, progress: bool = False
) -> DeliveryCount:
    """Runs once, and ends at most ten minutes after the last kill."""
    rng = random.Random(seed)
    accepted: list[str] = []
    fleet = Fleet(folder, f"{folder}/homing.db")
    async with Homing(config_file=fleet.config) as homing:
        fleet.start()
        try:
            for number in range(kills):
                await send_some(homing, notifications // kills, accepted)
                await asyncio.sleep(rng.uniform(0.0, 0.6))
                await asyncio.to_thread(fleet.kill_one, rng)
                if progress:
                    print(f"\rkilled {number + 1}/{kills}, accepted {len(accepted)}", end="", file=sys.stderr)
            await settled(homing, len(accepted))
        finally:
            await asyncio.to_thread(fleet.stop)
        return await count(homing, folder, accepted)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--notifications", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)))
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        work = run(Path(folder), options.kills, options.notifications, options.seed, progress=True)
        report = asyncio.run(work)
    print(f"\nseed {options.seed}, {options.kills} kills, {time.monotonic() - began:.1f} s")
    show(report)
    print("nothing was lost" if report.good else "SOMETHING IS WRONG")
    return 0 if report.good else 1


if __name__ == "__main__":
    sys.exit(main())
