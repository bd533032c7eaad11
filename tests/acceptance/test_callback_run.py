"""A short callback run; `callback_run.py --callbacks 10000` is the long one."""

from __future__ import annotations

from pathlib import Path

import callback_run
import pytest


@pytest.mark.slow
def test_callbacks_in_any_order_with_repeats_and_losses_end_the_same_and_forged_ones_change_nothing(
    tmp_path: Path,
) -> None:
    result = callback_run.run(tmp_path, callbacks=400, seed=5, shufflings=2)
    assert result.good, [wrong for one in result.outcomes for wrong in one.wrong]
    assert all(one.posted["forged"] and one.posted["early"] for one in result.outcomes)
