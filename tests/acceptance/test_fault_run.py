"""A short fault run: every fate of a webhook has its correct end, and nothing is accepted twice."""

from __future__ import annotations

from pathlib import Path

import fault_run
import pytest


@pytest.mark.slow
async def test_every_fate_has_its_correct_end_and_nothing_is_accepted_twice(tmp_path: Path) -> None:
    report = await fault_run.run(tmp_path, notifications=300)
    assert report.good, report
