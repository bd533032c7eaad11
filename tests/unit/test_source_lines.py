"""Every line of the source documents has a test or a reason, and the report says which."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import source_lines
from source_lines import read_report

ROOT = Path(__file__).parents[2]

REASONS = """
[000]
title = "A small source"
lines = 8
prose = ["1-2"]

[[000.decided_otherwise]]
lines = ["3"]
reason = "waits instead"
page = "decisions.md"

[[000.planned]]
lines = ["4"]
reason = "later"
"""


def write_project(folder: Path, test: str, reasons: str = REASONS) -> Path:
    """A project with one file of tests, one of reasons and one page."""
    for name in ("tests/acceptance", "docs"):
        (folder / name).mkdir(parents=True)
    (folder / "tests/acceptance/source_lines.toml").write_text(reasons)
    (folder / "tests/acceptance/test_it.py").write_text(f"import pytest\n\n{test}\n")
    (folder / "docs/decisions.md").touch()
    return folder


def marked(*markers: str) -> str:
    """A test with these arguments of the marker."""
    return "\n".join([*(f"@pytest.mark.source({one})" for one in markers), "def test_it():", "    pass"])


def test_every_line_of_the_sources_has_a_test_or_a_reason() -> None:
    report = read_report()
    assert report.sources.keys() == {"000", "001", "002", "003", "004"}
    assert report.problems == []


def test_a_test_or_a_reason_answers_a_line(tmp_path: Path) -> None:
    report = read_report(write_project(tmp_path, marked('"000", "5-6", "8"', '"000", "7"')))
    assert report.problems == []
    source = report.sources["000"]
    assert sorted(source.tests) == [5, 6, 7, 8]
    assert source.tests[7] == ["acceptance/test_it.py::test_it"]
    assert list(source_lines.format_source("000", source)) == [
        "Source 000: A small source",
        "      1-2  prose",
        "        3  decided otherwise: waits instead (decisions.md)",
        "        4  planned: later",
        "      5-8  acceptance/test_it.py::test_it",
    ]
    header, row, total = source_lines.format_table(report.sources)
    assert header.split() == ["source", "lines", "tests", "prose", "otherwise", "planned", "open"]
    assert row.split()[-6:] == total.split()[-6:] == ["8", "4", "2", "1", "1", "0"]


@pytest.mark.parametrize(
    ("test", "problem"),
    [
        (marked('"000", "5-6"'), "source 000, lines 7-8: neither a test nor a reason"),
        (
            marked('"000", "4-8"'),
            "source 000, line 4: checked by acceptance/test_it.py::test_it, and listed as planned: later",
        ),
        (
            marked('"000", "5-9"', '"000", "5-8"'),
            "tests/acceptance/test_it.py:3: '5-9' is outside of the 8 lines of the source",
        ),
        (
            marked('"000", "8-5"', '"000", "5-8"'),
            "tests/acceptance/test_it.py:3: '8-5' is neither a line nor a range of lines",
        ),
        (marked('"007", "1"', '"000", "5-8"'), "tests/acceptance/test_it.py:3: there is no source 007"),
        (
            marked('"000"', '"000", "5-8"'),
            'tests/acceptance/test_it.py:3: write the marker as source("003", "116-149", "345")',
        ),
        (
            marked('"000", 5', '"000", "5-8"'),
            'tests/acceptance/test_it.py:3: write the marker as source("003", "116-149", "345")',
        ),
        (
            marked('"000", "5-8"').replace("test_it", "helper"),
            "tests/acceptance/test_it.py:3: helper is not a test",
        ),
    ],
)
def test_a_wrong_marker_and_an_unanswered_line_are_problems(tmp_path: Path, test: str, problem: str) -> None:
    assert problem in read_report(write_project(tmp_path, test)).problems


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ('prose = ["1-2"]', 'prose = ["1-3"]', "line 3 is listed twice"),
        ('prose = ["1-2"]', 'prose = ["1-2", "9"]', "'9' is outside of the 8 lines of the source"),
        ("decisions.md", "missing.md", "docs/missing.md does not exist"),
        ("planned", "plans", "unknown keys plans"),
    ],
)
def test_a_wrong_reason_is_a_problem(tmp_path: Path, before: str, after: str, problem: str) -> None:
    project = write_project(tmp_path, marked('"000", "5-8"'), REASONS.replace(before, after))
    assert f"tests/acceptance/source_lines.toml, source 000: {problem}" in read_report(project).problems


def test_open_lines_are_listed_as_such(tmp_path: Path) -> None:
    source = read_report(write_project(tmp_path, marked('"000", "5-6"'))).sources["000"]
    assert source.open_lines() == [7, 8]
    assert "      7-8  OPEN: neither a test nor a reason" in source_lines.format_source("000", source)


def test_markers_of_classes_modules_and_parameters_count(tmp_path: Path) -> None:
    test = """
pytestmark = pytest.mark.source("000", "5")

@pytest.mark.source("000", "6")
class TestAll:
    @pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.source("000", "7-8"))])
    async def test_one(self, n):
        pass
"""
    report = read_report(write_project(tmp_path, test))
    assert report.problems == []
    assert report.sources["000"].tests == {
        5: ["acceptance/test_it.py"],
        6: ["acceptance/test_it.py::TestAll"],
        7: ["acceptance/test_it.py::TestAll::test_one"],
        8: ["acceptance/test_it.py::TestAll::test_one"],
    }


def test_the_command_lists_the_chosen_source_and_the_table() -> None:
    command = [sys.executable, str(ROOT / "tools/source_lines.py"), "004"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Source 004: Retry scheduler" in done.stdout
    assert "Source 003" not in done.stdout
    assert "\ntotal " in done.stdout
