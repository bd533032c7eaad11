"""A short run through PgBouncer; `pooler_run.py` without options is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest
from pooler_run import Plan, run

from support.postgres_servers import skip_if_missing

SHORT = Plan(notifications=500, kills=2, probes=1)


@pytest.mark.slow
async def test_everything_is_delivered_once_through_a_pooler_that_is_killed(tmp_path: Path) -> None:
    with skip_if_missing():
        report = await run(tmp_path, SHORT, seed=17)
    assert report.good, report
