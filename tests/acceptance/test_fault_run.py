"""The fault run, short: every fate of a webhook ends as it must, and nothing is taken twice."""

from __future__ import annotations

from pathlib import Path

import fault_run
import pytest


@pytest.mark.slow
async def test_every_fate_ends_as_it_must_and_nothing_is_taken_twice(tmp_path: Path) -> None:
    report = await fault_run.run(tmp_path, notifications=300)
    assert report.good, report
