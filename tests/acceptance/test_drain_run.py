"""A short drain run; `drain_run.py --stops 50` is the long one."""

from __future__ import annotations

from pathlib import Path

from drain_run import run


async def test_workers_that_are_stopped_under_load_lose_no_attempt(tmp_path: Path) -> None:
    report = await run(tmp_path, stops=3, per_stop=60, seed=3)
    assert report.accepted == 180
    assert report.good, report
