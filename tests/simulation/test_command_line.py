"""`python -m simulation`: its output and its exit codes."""

from __future__ import annotations

import json
import re
from unittest.mock import patch

import pytest
from simulation.__main__ import main

from homing.core.lifecycle import rows


def test_the_result_is_printed_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--lifetimes", "60", "--seed", "7", "--requests", "40"]) == 0
    out = capsys.readouterr().out
    for word in ("lifetimes", "attempts", "crashes", "outcomes", "statuses", "violations          0"):
        assert word in out


def test_the_result_is_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--lifetimes", "60", "--seed", "7", "--requests", "40", "--json"]) == 0
    totals = json.loads(capsys.readouterr().out)
    assert totals["lifetimes"] >= 60
    assert totals["failures"] == []


def test_a_violation_ends_with_code_1_and_shows_how_to_replay_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def never_counts(row: rows.Row, worker: str, lease_ms: int, now: int) -> rows.Change:
        change = real(row, worker, lease_ms, now)
        row.attempts -= 1
        return change

    real = rows.lease
    with patch.object(rows, "lease", never_counts):
        assert main(["--lifetimes", "500", "--seed", "7", "--requests", "40"]) == 1
        out = capsys.readouterr().out
        assert "invariant 5" in out
        found = re.search(r"reproduce with: python -m simulation --replay (\d+) --requests 40\n", out)
        assert found is not None
        assert main(["--replay", found[1], "--requests", "40"]) == 1
    assert "invariant 5" in capsys.readouterr().out


def test_several_processes_do_the_same_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--lifetimes", "150", "--seed", "7", "--requests", "40", "--processes", "2"]) == 0
    assert "violations          0" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [["--lifetimes", "0"], ["--processes", "-1"], ["--seed", "x"]])
def test_invalid_arguments_are_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(wrong)
    assert refused.value.code == 2
