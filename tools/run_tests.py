"""Runs all test suites one after another and prints a summary. `make test` calls this script.

A suite that fails does not stop the others. Each suite prints pytest's own output; a table of all suites
comes last. The exit code is 0 if everything passed and 1 otherwise.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

NO_TESTS = 5
"""pytest's exit code if no test was selected."""
TOO_LOW = 2
"""The exit code of `coverage report` if the coverage is below the given percentage."""
CLOSING_S = 30
"""Time that pytest has to stop the servers of its tests after an interruption, in seconds."""
SELECTING = ("-k", "-m", "--lf", "--last-failed", "--deselect", "--ignore", "tests/")
"""Beginnings of arguments that select tests. With one of them the coverage is not judged."""


@dataclass(frozen=True)
class Suite:
    """A folder under tests/. `usually` is its duration on an otherwise idle machine with two cores."""

    name: str
    about: str
    usually: str
    waits: bool = False
    """True if its tests wait for servers, programs and timeouts for about half of their time."""


SUITES = (
    Suite("unit", "single modules and classes, without an engine or a socket", "about 2 minutes"),
    Suite(
        "component", "a whole engine, or one part over real sockets, in one process", "about 4 minutes", True
    ),
    Suite("conformance", "the rules that every store and every provider must follow", "about 3 minutes"),
    Suite("integration", "stores, brokers, HTTP and SMTP, with real servers", "about 5 minutes", True),
    Suite(
        "acceptance",
        "whole programs: the command line, the service, kill -9, outages",
        "about 4 minutes",
        True,
    ),
    Suite("browser", "the dashboard in Chromium, with the whole service", "about 1 minute", True),
    Suite("upgrade", "an older build from the history shares a store with this one", "about 5 seconds"),
    Suite("simulation", "the engine in simulated time, with crashes and planted bugs", "about 4 minutes"),
)


@dataclass(frozen=True)
class CoverageGoal:
    """The branch coverage that some suites must reach together. It is judged after the last of them."""

    about: str
    included: str
    """The files, for `coverage report`."""
    percent: int
    suites: tuple[str, ...]
    lists_lines: bool = False
    """True if the lines that no test runs are printed. Otherwise only the percentage is."""


GOALS = (
    CoverageGoal(
        "core and engine",
        "src/homing/core/*,src/homing/engine/*",
        95,
        ("unit", "component"),
        lists_lines=True,
    ),
    CoverageGoal("the whole package", "src/homing/*", 85, ("unit", "component", "conformance", "acceptance")),
)
MEASURED_MODULES = {
    "unit": ("homing",),
    "component": ("homing",),
    "conformance": ("homing.providers", "homing.stores", "homing.testing"),
}
"""The modules that a suite measures. The suite conformance runs the rest of the package for a long time, but
runs less of it than the others do, and measuring takes time."""
COMMANDS_SUITE = "acceptance"
"""The suite that runs commands as processes of their own. Only these are measured (`support.cli_driver`)."""


@dataclass(frozen=True)
class Result:
    """One line of the summary. `problem` is empty if the suite passed."""

    name: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    problem: str = ""
    note: str = ""


class Interrupted(Exception):
    """Raised on SIGINT or SIGTERM, with the signal number. The summary is printed before the script ends."""


def main() -> int:
    options = _options()
    chosen = [suite for suite in SUITES if suite.name in (options.suites or [one.name for one in SUITES])]
    measured = [suite.name for suite in chosen if suite.name in {*MEASURED_MODULES, COMMANDS_SUITE}]
    results: list[Result] = []
    signal.signal(signal.SIGINT, _interrupt)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        for number, suite in enumerate(chosen, 1):
            _print(
                f"=== suite {number} of {len(chosen)}: {suite.name} ({suite.about}); usually {suite.usually}"
            )
            is_first_measured = suite.name in measured[:1]
            results.append(_run(suite, options.jobs, options.pytest, append_coverage=not is_first_measured))
            results += [
                _coverage(goal, _reason_not_to_judge(goal, measured, options.pytest))
                for goal in GOALS
                if suite.name in [name for name in measured if name in goal.suites][-1:]
            ]
    except Interrupted:
        results.append(Result("(the rest)", problem="interrupted"))
    _summarize(results)
    return 1 if any(result.problem for result in results) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run all test suites and print a summary.")
    parser.add_argument(
        "--jobs",
        default="auto",
        help="number of test processes, as for pytest-xdist's -n; 0 runs all tests in one process",
    )
    names = [suite.name for suite in SUITES]
    parser.add_argument("--suites", nargs="*", choices=names, help="only these suites; default: all of them")
    parser.add_argument("pytest", nargs="*", help="further arguments for pytest, after --")
    return parser.parse_args()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise Interrupted(number)


def _reason_not_to_judge(goal: CoverageGoal, measured: list[str], arguments: list[str]) -> str:
    """Returns why the measured coverage is incomplete, or an empty string if it can be judged."""
    if not set(goal.suites) <= set(measured):
        return f"{goal.about}: not judged, as that needs the suites {', '.join(goal.suites)}"
    if any(argument.startswith(SELECTING) for argument in arguments):
        return f"{goal.about}: not judged, as only some tests were selected"
    return ""


def _run(suite: Suite, jobs: str, arguments: list[str], *, append_coverage: bool) -> Result:
    """Runs one suite. pytest prints to the terminal and writes its counts to a JUnit file."""
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder, "counts.xml")
        processes = _processes() if jobs == "auto" and suite.waits else jobs
        command = [sys.executable, "-m", "pytest", "-n", processes, "--dist", "worksteal"]
        command += [f"--junitxml={counts}", f"tests/{suite.name}", *arguments]
        if suite.name in MEASURED_MODULES:
            modules = MEASURED_MODULES[suite.name]
            command += [*(f"--cov={module}" for module in modules), "--cov-report="]
            command += ["--cov-append"] if append_coverage else []
        began = time.monotonic()
        if suite.name == COMMANDS_SUITE and append_coverage:
            code = _call(command, COVERAGE_OF_COMMANDS=str(Path(".coverage").resolve()))
            _call([sys.executable, "-m", "coverage", "combine", "--append", "--quiet"])
        else:
            code = _call(command)
        return _result(suite.name, code, counts, time.monotonic() - began)


def _processes() -> str:
    """Returns the number of processes of a suite that waits: half as many again as there are cores."""
    cores = os.cpu_count() or 1
    return str(cores + cores // 2)


def _result(name: str, code: int, counts: Path, seconds: float) -> Result:
    try:
        found = ET.parse(counts).getroot().find("testsuite")  # noqa: S314 (pytest wrote it just now)
    except (OSError, ET.ParseError):
        found = None
    if found is None:
        return Result(name, seconds=seconds, problem=f"pytest ended early with exit code {code}")
    failed = int(found.get("failures", 0)) + int(found.get("errors", 0))
    skipped = int(found.get("skipped", 0))
    passed = int(found.get("tests", 0)) - failed - skipped
    problem = note = ""
    if failed:
        problem = f"{failed} failed"
    elif code == NO_TESTS:
        note = "no test selected"
    elif code != 0:
        problem = f"pytest's exit code is {code}"
    return Result(name, passed, failed, skipped, seconds, problem, note)


def _coverage(goal: CoverageGoal, reason_not_to_judge: str) -> Result:
    """Prints the branch coverage in percent. The result fails if the coverage is too low.

    If there is a reason not to judge the coverage, the result only states the reason.
    """
    if reason_not_to_judge:
        return Result("coverage", note=reason_not_to_judge)
    began = time.monotonic()
    _print(f"=== coverage of {goal.about} by the suites {', '.join(goal.suites)}, in percent:")
    report = ["report", f"--include={goal.included}", f"--fail-under={goal.percent}"]
    report += [] if goal.lists_lines else ["--format=total"]
    code = _call([sys.executable, "-m", "coverage", *report])
    missed = f"{goal.about}: below {goal.percent} %; make coverage lists the lines"
    problem = missed if code == TOO_LOW else f"exit code {code}" if code else ""
    note = f"{goal.about}: at least {goal.percent} %"
    return Result("coverage", seconds=time.monotonic() - began, problem=problem, note=note)


def _call(command: list[str], **variables: str) -> int:
    """Runs a command with these environment variables and returns its exit code.

    If this script is interrupted, the command ends first.
    """
    process = subprocess.Popen(command, env={**os.environ, **variables})  # noqa: S603 (our own command)
    try:
        return process.wait()
    except Interrupted as interrupted:
        if interrupted.args != (signal.SIGINT,):  # the terminal sends SIGINT to the command itself
            process.send_signal(signal.SIGINT)
        try:
            process.wait(CLOSING_S)  # pytest stops the servers that it has started
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise


def _summarize(results: list[Result]) -> None:
    print()
    print(f"{'suite':<12} {'passed':>7} {'failed':>7} {'skipped':>8} {'seconds':>8}")
    for one in results:
        counts = f"{one.passed:>7} {one.failed:>7} {one.skipped:>8}"
        if one.name == "coverage":
            counts = f"{'-':>7} {'-':>7} {'-':>8}"
        verdict = f"FAILED: {one.problem}" if one.problem else f"ok{one.note and f' ({one.note})'}"
        print(f"{one.name:<12} {counts} {one.seconds:>8.0f}  {verdict}")
    passed, failed = sum(one.passed for one in results), sum(one.failed for one in results)
    skipped, seconds = sum(one.skipped for one in results), sum(one.seconds for one in results)
    print(f"{'total':<12} {passed:>7} {failed:>7} {skipped:>8} {seconds:>8.0f}")
    wrong = dict.fromkeys(one.name for one in results if one.problem)
    _print(f"FAILED: {', '.join(wrong)}" if wrong else "All suites passed.")


def _print(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
