"""Measures what a claim on MongoDB examines while 10,000 and 1,000,000 notifications wait.

    python bench/with_servers.py mongo -- python bench/mongo_claim_cost.py {mongo}

The server counts the documents and index keys that each statement of a claim examines. The notifications are
spread over 5 tenants with 4 outlets each. Exits with 1 if the larger backlog costs more than 1.3 times as
much.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from pymongo import MongoClient

from homing.benching.scratch_store import open_scratch_store
from homing.benching.worker_processes import run_async
from homing.stores.mongo import MongoStore
from homing.testing.builders import a_claim_request, a_notification, a_submission

MOST_GROWTH = 1.3
TENANTS, OUTLETS = 5, 4
BATCH = 2_000
CLAIMS, CLAIM_ROWS = 5, 100


def batches(number: int) -> Iterator[tuple[str, list[Any]]]:
    """Yields (tenant, notifications), in all `number` notifications."""
    for start in range(0, number, BATCH):
        outlets = (f"webhook@{one % OUTLETS}.example.org" for one in range(BATCH))
        yield f"tenant-{start // BATCH % TENANTS}", [a_notification(outlet=outlet) for outlet in outlets]


async def measure(server: str, waiting: int) -> tuple[float, float]:
    """Returns the keys and documents that one claim examines on average."""
    async with open_scratch_store(server) as place:
        store = MongoStore(place.store)
        await store.open()
        try:
            await store.migrate()
            for tenant, notifications in batches(waiting):
                await store.accept([a_submission(*notifications, tenant=tenant)])
            with MongoClient[dict[str, Any]](place.store) as client:
                database = client.get_default_database()
                database.command("profile", 2)
                for _ in range(CLAIMS):
                    batch = await store.claim(a_claim_request(limit=CLAIM_ROWS))
                    assert len(batch.claims) == CLAIM_ROWS, len(batch.claims)
                database.command("profile", 0)
                own = {"ns": {"$ne": f"{database.name}.system.profile"}}
                profiled = list(database["system.profile"].find(own))
        finally:
            await store.close()
    keys = sum(one.get("keysExamined", 0) for one in profiled) / CLAIMS
    return keys, sum(one.get("docsExamined", 0) for one in profiled) / CLAIMS


async def main(options: argparse.Namespace) -> int:
    found = []
    for waiting in options.waiting:
        keys, documents = await measure(options.store, waiting)
        found.append(keys + documents)
        print(f"{waiting:>9,} waiting: {keys:8,.0f} keys, {documents:8,.0f} documents examined per claim")
    growth = found[-1] / found[0]
    print(f"a claim of {CLAIM_ROWS} costs {growth:.2f} times as much (bar: {MOST_GROWTH})")
    return 0 if growth <= MOST_GROWTH else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("store", help="URL of a MongoDB server that permits new databases")
    parser.add_argument("--waiting", type=int, nargs="+", default=[10_000, 1_000_000])
    sys.exit(run_async(main(parser.parse_args())))
