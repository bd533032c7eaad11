"""The reports of `homing explain` and `homing policy simulate` fit a terminal of 80 columns."""

from __future__ import annotations

import re

import pytest

from homing import Homing
from homing.cli.common.masking import RecipientMask
from homing.cli.common.screen import Screen
from homing.cli.operations.explain import show_explanation
from homing.cli.operations.policy_simulate import show_report
from homing.core.notifications import OutcomeKind
from homing.core.rehearsal import Outage, Rehearsal, Traffic
from homing.providers.local.scripted import ScriptedProvider
from homing.rehearsal.rehearse import rehearse

MINUTE_MS = 60_000


@pytest.fixture(autouse=True)
def _narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")


def _wide_lines(text: str) -> list[str]:
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return [line for line in plain.splitlines() if len(line.rstrip()) > 80]


async def test_the_history_in_an_explanation_fits(capsys: pytest.CaptureFixture[str]) -> None:
    down = OutcomeKind.TRANSIENT
    providers = {name: ScriptedProvider(name, usual=down) for name in ("sendgrid", "mailgun")}
    async with Homing("memory:", providers=providers) as homing:
        sent = await homing.send("ada@example.org", channel="email", body="x")
        await homing.process()
        found = await homing.explain(sent.id)
    show_explanation(Screen(no_color=True), RecipientMask(show=False), found)
    _, history = capsys.readouterr().out.split("What happened")
    assert "attempt 2" in history
    assert _wide_lines(history.partition("Its policy")[0]) == []
    assert f"on {found.history.notification.created_at.astimezone():%Y-%m-%d} (times are local" in history


def test_the_charts_of_a_simulation_fit(capsys: pytest.CaptureFixture[str]) -> None:
    traffic, outage = Traffic(per_second=0.5, duration_ms=2 * MINUTE_MS), Outage(duration_ms=MINUTE_MS)
    report = rehearse(Rehearsal(traffic=traffic, outages=(outage,), providers=2))
    show_report(Screen(no_color=True), report, traffic, outage, None)
    shown = capsys.readouterr().out
    assert "▔" in shown
    assert _wide_lines(shown) == []
