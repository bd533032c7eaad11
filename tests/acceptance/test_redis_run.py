"""A short run with a Redis that is restarted; `redis_run.py` without options is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest
from redis_run import Plan, run

from support.redis_server import skip_if_no_redis

SHORT = Plan(restarts=2, kills=1, per_step=10, workers=2)


@pytest.mark.slow
async def test_nothing_is_lost_while_redis_is_restarted_and_workers_are_killed(tmp_path: Path) -> None:
    with skip_if_no_redis():
        report = await run(tmp_path, SHORT, seed=19)
    assert report.good, report
