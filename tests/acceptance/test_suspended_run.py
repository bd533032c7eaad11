"""A short run with suspended workers; `suspended_run.py` without options is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest
from suspended_run import Plan, run

from support.postgres_servers import skip_if_missing

SHORT = Plan(suspended=2, others=1, lease_s=1)


@pytest.mark.slow
async def test_everything_is_delivered_beside_workers_that_are_suspended_inside_a_transaction(
    tmp_path: Path,
) -> None:
    with skip_if_missing():
        report = await run(tmp_path, SHORT, seed=17)
    assert report.good(SHORT), report
