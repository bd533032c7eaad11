"""The progress of `homing policy simulate`: on stderr, and only if it takes longer than five seconds."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, pairwise

import pytest

from homing.cli.common.options import Options
from homing.cli.common.progress import ProgressBar
from homing.cli.operations.policy_simulate import rehearse_with_progress
from homing.core.rehearsal import Rehearsal, Traffic
from homing.rehearsal.rehearse import rehearse

SHORT = Rehearsal(traffic=Traffic(per_second=1.0, duration_ms=60_000))
"""60 notifications, and an outage that starts after the last of them."""


class Seconds:
    """A clock that advances by a fixed time whenever it is read."""

    def __init__(self, step_s: float) -> None:
        self._times: Iterator[float] = (number * step_s for number in count())

    def __call__(self) -> float:
        return next(self._times)


@pytest.fixture(autouse=True)
def _no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)


def test_a_rehearsal_reports_how_many_notifications_have_ended() -> None:
    seen: list[tuple[int, int]] = []
    report = rehearse(SHORT, lambda ended, total: seen.append((ended, total)))
    assert {total for _, total in seen} == {60}
    assert all(before <= after for (before, _), (after, _) in pairwise(seen))
    assert seen[0][0] < seen[-1][0] <= report.delivered == 60


def test_the_report_is_the_same_with_progress(capsys: pytest.CaptureFixture[str]) -> None:
    assert rehearse_with_progress(Options(), SHORT, Seconds(1.0)) == rehearse(SHORT)
    assert capsys.readouterr().out == "", "stdout has only the result"


def test_a_quick_simulation_prints_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    rehearse_with_progress(Options(), SHORT, Seconds(0.01))
    assert capsys.readouterr().err == ""


def test_a_long_simulation_prints_a_line_every_two_seconds_from_the_fifth_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now_s = 0.0
    with ProgressBar(Options(), "simulating", 100, after_s=5.0, now=lambda: now_s) as bar:
        for now_s in (0.0, 2.0, 4.9, 5.0, 6.9, 7.0, 8.0, 20.0):
            bar.at(int(now_s), f"at {now_s:g} s")
    assert capsys.readouterr().err.splitlines() == [
        "simulating: at 5 s (5 %)",
        "simulating: at 7 s (7 %)",
        "simulating: at 20 s (20 %)",
    ]


def test_the_lines_name_the_notifications(capsys: pytest.CaptureFixture[str]) -> None:
    rehearse_with_progress(Options(), SHORT, Seconds(1.0))
    first = capsys.readouterr().err.splitlines()[0]
    assert first == "simulating: 4 of 60 notifications have ended (6 %)"


def test_on_a_terminal_a_bar_appears_after_five_seconds_and_is_removed_at_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    now_s = 0.0
    with ProgressBar(Options(), "simulating", 100, after_s=5.0, now=lambda: now_s) as bar:
        now_s = 4.9
        bar.at(4, "too early")
        assert capsys.readouterr().err == ""
        now_s = 7.0
        bar.at(7, "7 of 100")
    shown = capsys.readouterr().err
    assert "7 of 100" in shown
    assert "0:00:07" in shown, "the time counts from the start, not from when the bar appeared"
    assert shown.rstrip().endswith("\x1b[1A\x1b[2K"), "the bar is erased"
