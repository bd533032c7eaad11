"""A short kill run; `kill_run.py --kills 200` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest
from kill_run import run


@pytest.mark.slow
@pytest.mark.source("003", "448-449")
async def test_twenty_killed_workers_lose_nothing_and_send_no_more_than_they_attempted(
    tmp_path: Path,
) -> None:
    report = await run(tmp_path, kills=20, notifications=1000, seed=20)
    assert report.accepted == 1000
    assert report.accounted == report.accepted
    assert report.lost == 0
    assert report.sent == report.accepted
    assert report.oversent == 0
