"""Tables on a terminal."""

from __future__ import annotations

import re

import pytest

from homing.cli.common.screen import Screen


@pytest.fixture(autouse=True)
def narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")


def test_empty_columns_are_left_out_before_a_cell_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    columns = ("PROVIDER", "RATE>", "BREAKER~")
    assert not Screen(no_color=True).table(columns, [("mail", "", "open 4m ago, trial in 41s")])
    head, row = capsys.readouterr().out.splitlines()
    assert "RATE" not in head
    assert row.rstrip().endswith("trial in 41s")


def test_a_table_says_if_it_had_to_cut_a_cell(capsys: pytest.CaptureFixture[str]) -> None:
    columns = ("PROVIDER", "RATE>", "BREAKER~")
    assert Screen(no_color=True).table(columns, [("mail", "2/s", "open 4m ago, trial in 41s")])
    head, row = capsys.readouterr().out.splitlines()
    assert "RATE" in head
    assert row.rstrip().endswith("…")


def test_a_table_that_fits_keeps_its_empty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert not Screen(no_color=True).table(("NAME", "RATE>"), [("mail", "")])
    assert "RATE" in capsys.readouterr().out


def test_a_row_that_is_too_wide_continues_on_a_second_line(capsys: pytest.CaptureFixture[str]) -> None:
    columns = ("ID", "STATUS", "TO", "LAST ERROR~")
    row = ("0123456789abcdef", "failed", "ada@x.org", "the server could not be reached")
    assert Screen(no_color=True).table(columns, [row], first_line=2)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert [line.rstrip() for line in plain.splitlines()] == [
        "ID                STATUS",
        "    TO         LAST ERROR",
        "0123456789abcdef  failed",
        "    ada@x.org  the server could not be …",
    ]
    assert not Screen(no_color=True).table(("ID", "STATUS"), [("1", "sent")], first_line=1)
    assert len(capsys.readouterr().out.splitlines()) == 2, "one line per row if they fit"
