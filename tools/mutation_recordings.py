"""Records which test runs which line, and finds the tests that may notice a change (`tools/mutations.py`)."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from itertools import accumulate
from pathlib import Path

from coverage.numbits import numbits_to_nums

from mutation_operators import Mutation

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "mutations"

RECORDED = {
    "unit": ["tests/unit/core", "tests/unit/engine", "tests/unit/stores"],
    "component": [
        "tests/component/engine",
        "tests/component/rehearsal",
        "tests/component/test_library.py",
        "tests/component/test_loop_watchdog.py",
    ],
    "surfaces": ["tests/component/api", "tests/component/dashboard", "tests/component/rendering"],
    "conformance": [
        "tests/conformance/test_sqlite.py",
        "tests/conformance/test_sqlite_in_memory.py",
        "tests/conformance/test_postgres.py",
    ],
    "integration": [
        "tests/integration/test_[abe]*.py",
        "tests/integration/test_migrations.py",
        "tests/integration/test_po*.py",
        "tests/integration/test_pr*.py",
        "tests/integration/test_r[ae][fjlpt]*.py",
        "tests/integration/test_row_columns.py",
        "tests/integration/test_s[qty]*.py",
    ],
    "commands": ["tests/acceptance/test_cli_db_copy.py", "tests/acceptance/test_cli_db_uninstall.py"],
    "simulation": ["tests/simulation/test_planted_bugs.py", "-k", "without_a_bug"],
}
"""The tests whose lines are recorded, by the name of their recording. None needs a broker or a vendor.

The last ones are the simulations in which bugs are planted, without these bugs.
"""
RUN_BY_COMMANDS = {
    "src/homing/stores/common/copy.py": "tests/acceptance/test_cli_db_copy.py",
    "src/homing/stores/sqlite/copy.py": "tests/acceptance/test_cli_db_copy.py",
    "src/homing/stores/postgres/copy.py": "tests/acceptance/test_cli_db_copy.py",
    "src/homing/stores/postgres/uninstall.py": "tests/acceptance/test_cli_db_uninstall.py",
}
"""Files that only commands run → the tests of these commands.

Commands are processes of their own, so no line of theirs is recorded. All tests of a command may notice a
change.
"""
CHUNKS_S = (4.0, 15.0, 60.0)
"""Duration of the first groups of tests, in seconds. The last group has all others."""


def record(suites: Sequence[str], jobs: str) -> int:
    """Runs the tests with coverage, and stores which test runs which line."""
    settings = BUILD / "coverage.ini"
    settings.write_text("[run]\nbranch = false\nsource = homing\nparallel = true\nconcurrency = thread\n")
    options = ["-q", "-n", jobs, "--durations=0", "--durations-min=0.02"]
    options += ["--cov", f"--cov-config={settings}", "--cov-context=test", "--cov-report="]
    failed = 0
    for suite in suites:
        with (BUILD / f"{suite}.log").open("w") as log:
            failed |= subprocess.run(  # noqa: S603
                [sys.executable, "-m", "pytest", *options, *_arguments(suite)],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                check=False,
                env=os.environ | {"COVERAGE_FILE": str(BUILD / f"coverage.{suite}")},
            ).returncode
    return failed


def _arguments(suite: str) -> list[str]:
    """Returns the arguments of pytest for a suite, with its patterns replaced by paths."""
    return [
        argument
        for pattern in RECORDED[suite]
        for argument in ([str(path) for path in sorted(ROOT.glob(pattern))] or [pattern])
    ]


class RecordedTests:
    """The tests that run each line, and how long each test takes."""

    def __init__(self, suites: Collection[str] = tuple(RECORDED)) -> None:
        self._by_line: dict[tuple[str, int], set[str]] = defaultdict(set)
        self._by_file: dict[str, set[str]] = defaultdict(set)
        self._breadth: Counter[str] = Counter()
        self._seconds: dict[str, float] = defaultdict(float)
        self._by_command: dict[str, set[str]] = defaultdict(set)
        failing: set[str] = set()
        for log in BUILD.glob("*.log"):
            text = log.read_text()
            for seconds, test in re.findall(
                r"^([0-9.]+)s (?:call|setup|teardown) +(tests/.+)$", text, re.MULTILINE
            ):
                self._seconds[test.strip()] += float(seconds)
            failing.update(re.findall(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", text, re.MULTILINE))
        for database in (BUILD / f"coverage.{suite}" for suite in suites):
            if database.exists():
                self._load(database, failing)
        for path, tests in RUN_BY_COMMANDS.items() if "commands" in suites else ():
            self._by_command[path] = {test for test in self._seconds if test.startswith(tests)} - failing

    def _load(self, database: Path, failing: set[str]) -> None:
        query = "SELECT context, path, numbits FROM line_bits JOIN context ON context.id = context_id"
        with sqlite3.connect(database) as connection:
            for context, path, bits in connection.execute(query + " JOIN file ON file.id = file_id"):
                test = context.rpartition("|")[0]
                if not test or test in failing:
                    continue
                name = path[path.index("src/homing/") :]
                numbers = numbits_to_nums(bits)
                self._breadth[test] += len(numbers)
                self._by_file[name].add(test)
                for number in numbers:
                    self._by_line[name, number].add(test)

    def of(self, mutation: Mutation) -> list[str]:
        """Returns the tests that may notice a change, the most specific ones first."""
        lines = [(mutation.path, line) for line in mutation.lines]
        if mutation.constant:
            lines += _lines_with(mutation.constant, ROOT / mutation.path)
        tests = {test for line in lines for test in self._by_line.get(line, ())} or self._by_file[
            mutation.path
        ]
        tests = tests | self._by_command[mutation.path]
        once = {test.replace("[uvloop", "[asyncio"): test for test in sorted(tests)}  # on one event loop
        return sorted(once.values(), key=lambda test: (self._breadth[test], test))

    def within(self, tests: Sequence[str], most_s: float) -> list[str]:
        """Returns the first of these tests, as many as take `most_s` seconds together."""
        ends = accumulate(self.seconds([test]) for test in tests)
        return [test for test, end in zip(tests, ends, strict=True) if end <= most_s]

    def groups(self, tests: Sequence[str]) -> list[list[str]]:
        """Splits tests into groups that take longer and longer."""
        groups: list[list[str]] = [[]]
        taken = 0.0
        for test in tests:
            if len(groups) <= len(CHUNKS_S) and taken >= CHUNKS_S[len(groups) - 1]:
                groups.append([])
                taken = 0.0
            groups[-1].append(test)
            taken += self.seconds([test])
        return groups

    def seconds(self, tests: Sequence[str]) -> float:
        return sum(self._seconds[test] + 0.02 for test in tests)


def _lines_with(name: str, path: Path) -> list[tuple[str, int]]:
    """Returns the lines that use an SQL statement by its name, in the same folder."""
    found: list[tuple[str, int]] = []
    for file in path.parent.glob("*.py"):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if re.search(rf"\b{name}\b", line):
                found.append((str(file.relative_to(ROOT)), number))
    return found
