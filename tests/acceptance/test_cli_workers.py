"""`homing workers` on the real command line, and what `doctor` and `health` say of a missing worker."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import pytest

from homing import __version__
from homing.stores.sqlite import SqliteStore
from homing.testing.builders import a_notification, a_submission
from support.cli_driver import SETTINGS, Cli


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    (tmp_path / "homing.toml").write_text(SETTINGS)
    return Cli(tmp_path)


def test_a_running_worker_is_listed_and_a_stopped_one_is_not(cli: Cli) -> None:
    missing = cli("workers")
    assert missing.code == 4
    assert "does not exist" in missing.err
    worker = cli.start("worker")
    try:
        deadline = time.monotonic() + 60
        while (found := cli("workers", "--json")).code != 0 or not found.json["items"]:
            assert time.monotonic() < deadline, "no heartbeat within a minute"
        [item] = found.json["items"]
        assert set(item) == {"name", "state", "version", "startedAt", "seenAt", "lanes", "providers"}
        assert (item["state"], item["version"]) == ("live", __version__)
        assert str(worker.pid) in item["name"]
        table = cli.ok("workers").out
        assert all(len(line) <= 80 for line in table.splitlines()), table
        assert item["name"] in table
        assert "1 live worker" in cli("doctor").out
        assert cli("now").out.splitlines()[-1] == "1 live worker, 0 dead letters"
        shown, system = cli.many(["system"], ["system", "--json"])
        assert [one["name"] for one in system.json["workers"]] == [item["name"]]
        assert set(system.json) == {"now", "workers", "sinks", "bridges", "timers"}
        assert item["name"] in shown.out
        assert "PARKED" in shown.out
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=60)
    assert cli.ok("workers", "--json").json == {"items": []}


def test_overdue_work_without_a_worker_is_unhealthy(cli: Cli) -> None:
    cli.ok("db", "migrate")
    asyncio.run(_accept_long_ago(cli.folder / "homing.db"))
    doctor, health, listed = cli.many(["doctor"], ["health", "--json"], ["list"])
    assert doctor.code == health.code == 1
    assert "no live worker → start `homing worker`" in doctor.out
    assert "overdue and no worker is live: `homing workers`" in listed.err
    [check] = [one for one in health.json["thresholds"] if one["exceeded"]]
    assert check["name"] == "NoLiveWorker"
    assert check["value"] > 3_000_000


async def _accept_long_ago(path: Path) -> None:
    store = SqliteStore(path, clock=lambda: time.time_ns() // 1_000_000 - 3_600_000)
    await store.open()
    await store.accept([a_submission(a_notification())])
    await store.close()
