"""`make test` runs every suite even if one fails, and prints a summary last."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PASSING = "def test_fine():\n    pass\n"
FAILING = "def test_broken():\n    assert 1 == 2\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with three suites of its own. The first one fails."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    for suite, source in {"unit": FAILING, "component": PASSING, "conformance": PASSING}.items():
        (tmp_path / "tests" / suite).mkdir(parents=True)
        (tmp_path / "tests" / suite / f"test_{suite}.py").write_text(source + PASSING)
    return tmp_path


def run(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools/run_tests.py"), "--jobs", "0", *arguments]
    return subprocess.run(command, cwd=project, capture_output=True, text=True)


def rows(out: str) -> dict[str, list[str]]:
    """Returns the rows of the summary by suite."""
    table = out[out.index("suite         passed") :].splitlines()
    return {line.split()[0]: line.split()[1:4] for line in table[1:-1]}


def test_a_suite_that_fails_does_not_stop_the_others(project: Path) -> None:
    done = run(project, "--suites", "unit", "component", "conformance")
    assert done.returncode == 1
    assert "=== suite 1 of 3: unit (" in done.stdout
    assert "=== suite 3 of 3: conformance (" in done.stdout
    assert re.search(r"1 failed, 1 passed.* in ", done.stdout), "pytest's own closing line is visible"
    found = rows(done.stdout)
    assert found["unit"] == ["1", "1", "0"]
    assert found["conformance"] == ["1", "0", "0"]
    assert found["total"] == ["3", "1", "0"]
    assert done.stdout.splitlines()[-1] == "FAILED: unit, coverage"  # no code of the package ran


def test_arguments_reach_pytest_and_with_a_selection_the_coverage_is_not_judged(project: Path) -> None:
    done = run(project, "--suites", "unit", "conformance", "--", "-k", "fine")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "All suites passed.")
    assert rows(done.stdout)["unit"] == ["1", "0", "0"]
    nothing = run(project, "--suites", "conformance", "--", "-k", "no_such_test")
    assert nothing.returncode == 0
    assert "no test selected" in nothing.stdout


def test_coverage_is_judged_only_if_unit_and_component_tests_ran(project: Path) -> None:
    done = run(project, "--suites", "component")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "All suites passed.")
    assert "core and engine: not judged, as that needs the suites unit, component" in done.stdout
    assert "the whole package: not judged, as that needs the suites unit, component, conf" in done.stdout


def test_coverage_counts_lines_that_only_one_of_the_two_suites_runs(project: Path) -> None:
    package = project / "homing" / "core"
    package.mkdir(parents=True)
    (project / "homing" / "engine").mkdir()
    for folder in (project / "homing", package, project / "homing" / "engine"):
        (folder / "__init__.py").touch()
    (package / "sides.py").write_text("def left():\n    return 1\n\n\ndef right():\n    return 2\n")
    for suite, side in {"unit": "left", "component": "right"}.items():
        test = f"from homing.core.sides import {side}\n\ndef test_it():\n    assert {side}()\n"
        (project / "tests" / suite / f"test_{suite}.py").write_text(test)
    (project / ".coveragerc").write_text("[run]\nbranch = true\n")
    run(project, "--suites", "unit", "component")
    command = [
        sys.executable,
        "-m",
        "coverage",
        "report",
        "--include=homing/core/sides.py",
        "--fail-under=100",
    ]
    assert subprocess.run(command, cwd=project, check=False).returncode == 0


COMMANDS_TEST = """
import os, subprocess, sys

def test_it():
    options = ["--source=homing.cli", "--parallel-mode", f"--data-file={os.environ['COVERAGE_OF_COMMANDS']}"]
    command = [sys.executable, "-m", "coverage", "run", *options, "-m", "homing.cli"]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": "src"})
"""


@pytest.mark.source("004", "233")
def test_the_whole_package_needs_a_coverage_of_85_percent_with_that_of_its_commands(project: Path) -> None:
    (project / "pytest.ini").write_text("[pytest]\npythonpath = src\n")
    (project / ".coveragerc").write_text("[run]\nbranch = true\n")
    twenty_lines = "".join(f"print({number})\n" for number in range(20))
    for name, source in {
        "__init__": "",
        "core/__init__": "",
        "core/sides": "def left():\n    return 1\n",
        "engine/__init__": "",
        "cli": twenty_lines,
        "never_imported": 5 * "value = 1\n",
    }.items():
        module = project / "src/homing" / f"{name}.py"
        module.parent.mkdir(parents=True, exist_ok=True)
        module.write_text(source)
    test = "from homing.core.sides import left\n\ndef test_it():\n    assert left()\n"
    (project / "tests/unit/test_unit.py").write_text(test)
    (project / "tests/acceptance").mkdir()
    (project / "tests/acceptance/test_acceptance.py").write_text(COMMANDS_TEST)
    done = run(project, "--suites", "unit", "component", "conformance", "acceptance")
    assert "ok (core and engine: at least 95 %)" in done.stdout
    assert "in percent:\n81\n" in done.stdout, "22 of 27 lines, 20 of them in a command"
    assert "FAILED: the whole package: below 85 %" in done.stdout
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "FAILED: coverage")


def test_a_suite_that_cannot_be_collected_fails(project: Path) -> None:
    (project / "tests/conformance/test_conformance.py").write_text("import no_such_module\n")
    done = run(project, "--suites", "conformance")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "FAILED: conformance")


def test_a_signal_ends_the_tests_and_the_summary_is_still_printed(project: Path) -> None:
    waits = (
        "import pathlib, time\n\ndef test_waits():\n    pathlib.Path('began').touch()\n    time.sleep(600)\n"
    )
    (project / "tests/conformance/test_conformance.py").write_text(waits)
    command = [sys.executable, str(ROOT / "tools/run_tests.py"), "--jobs", "0", "--suites", "conformance"]
    running = subprocess.Popen(command, cwd=project, stdout=subprocess.PIPE, text=True)
    while not (project / "began").exists():
        assert running.poll() is None
        time.sleep(0.05)
    running.terminate()
    out, _ = running.communicate(timeout=120)
    assert running.returncode == 1
    assert "KeyboardInterrupt" in out, "pytest ended in its own way"
    assert "FAILED: interrupted" in out
