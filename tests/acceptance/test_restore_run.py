"""Short restores under running workers; `restore_run.py` without options is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest
from restore_run import KINDS, Restore

from support.postgres_servers import skip_if_missing


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_a_restore_loses_and_repeats_exactly_what_is_documented(kind: str, tmp_path: Path) -> None:
    with skip_if_missing():
        report = await Restore(tmp_path, kind, number=10, rate=50, seed=17).run()
    assert report.good, report
