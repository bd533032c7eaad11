"""Short failover runs; `failover_run.py --kind KIND --rounds 20` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest
from failover_run import KINDS, Failover

from support.postgres_servers import skip_if_missing


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_that_counts_is_lost_when_the_primary_fails(kind: str, tmp_path: Path) -> None:
    with skip_if_missing():
        report = await Failover(tmp_path, kind, rounds=1, rate=100, seed=17).run()
    assert report.good, report
    assert report.audit.acknowledged > 50
