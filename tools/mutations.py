"""Changes one piece of the delivery code at a time and checks that a test fails: a test of the tests.

    python tools/mutations.py record                      # which test runs which line, once
    python tools/mutations.py run --seed 1620 --count 100 # may be interrupted, and goes on where it was
    python tools/mutations.py show --seed 1620

A seed chooses the changes, at most one per function. Each is made in a copy of the project. Then the tests
that run the changed lines follow, the most specific ones first and the worlds of the planted bugs last, until
one fails. If none does, and simulations run these lines, simulations with fresh seeds follow. A test that
fails and has real I/O is repeated without the change, and counts only if it passes there. CONTRIBUTING.md
says what to do with a change that no test catches.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from typing import NoReturn

import pytest
from coverage.numbits import numbits_to_nums

from mutation_operators import Mutation, find_mutations

PRELOADED = (
    *("xdist.plugin", "pytest_cov.plugin", "pytest_asyncio.plugin", "hypothesis", "asyncpg", "msgspec"),
    *("uvloop", "cryptography.x509", "uvicorn", "starlette.applications"),
)
"""Modules that the tests need, imported once for all runs."""

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "mutations"

SCOPE = (
    "core/retry",
    "core/routing",
    "core/lifecycle",
    "core/clock_offset.py",
    "core/clock_steps.py",
    "engine/delivery",
    "engine/intake",
    "engine/receipts",
    "engine/upkeep",
    "engine/operations",
    "stores/common",
    "stores/sqlite",
    "stores/postgres",
)
"""The code of delivery, relative to src/homing."""

RECORDED = {
    "unit": ["tests/unit/core", "tests/unit/engine", "tests/unit/stores"],
    "component": ["tests/component/engine", "tests/component/rehearsal", "tests/component/test_library.py"],
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
    "simulation": ["tests/simulation/test_planted_bugs.py", "-k", "without_a_bug"],
}
"""The tests whose lines are recorded, by the name of their recording. None needs a broker or a vendor.

The last ones are the simulations in which bugs are planted, without these bugs.
"""
CHUNKS_S = (4.0, 15.0, 60.0)
"""Duration of the first groups of tests, in seconds. The last group has all others."""
WAIT_LIMIT_S = 75.0
"""A test waits for a minute before it fails, so a group of tests gets that much more time than usual."""


def main() -> int:
    arguments = _parser().parse_args()
    BUILD.mkdir(parents=True, exist_ok=True)
    if arguments.command == "record":
        return record(arguments.suites or list(RECORDED), arguments.jobs)
    if arguments.command == "run":
        run(arguments)
    show(arguments.seed, arguments.count)
    return 0


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

    def __init__(self) -> None:
        self._by_line: dict[tuple[str, int], set[str]] = defaultdict(set)
        self._by_file: dict[str, set[str]] = defaultdict(set)
        self._breadth: Counter[str] = Counter()
        self._seconds: dict[str, float] = defaultdict(float)
        failing: set[str] = set()
        for log in BUILD.glob("*.log"):
            text = log.read_text()
            for seconds, test in re.findall(
                r"^([0-9.]+)s (?:call|setup|teardown) +(tests/.+)$", text, re.MULTILINE
            ):
                self._seconds[test.strip()] += float(seconds)
            failing.update(re.findall(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", text, re.MULTILINE))
        for database in (BUILD / f"coverage.{suite}" for suite in RECORDED):
            if database.exists():
                self._load(database, failing)

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


def choose(seed: int, count: int) -> list[Mutation]:
    """Returns changes in random order, at most one per function."""
    everything = list(_all_mutations())
    random.Random(seed).shuffle(everything)
    chosen: dict[tuple[str, str], Mutation] = {}
    for mutation in everything:
        if len(chosen) == count:
            break
        chosen.setdefault((mutation.path, mutation.function), mutation)
    return list(chosen.values())


@cache
def _all_mutations() -> tuple[Mutation, ...]:
    sources = [ROOT / "src" / "homing" / name for name in SCOPE]
    files = sorted({file for source in sources for file in (source, *source.rglob("*.py")) if file.is_file()})
    return tuple(mutation for file in files for mutation in find_mutations(file, ROOT))


@dataclass(frozen=True)
class Verdict:
    """What became of a change: the test that caught it, or nothing."""

    key: str
    caught_by: str
    tests: int
    seconds: float


def run(arguments: argparse.Namespace) -> None:
    """Tries the changes that have no verdict yet, in several processes."""
    number, parts = (int(text) for text in arguments.part.split("/"))
    results = BUILD / f"results-{arguments.seed}.jsonl"
    known = _verdicts(results)
    todo = [
        (index, mutation)
        for index, mutation in enumerate(choose(arguments.seed, arguments.count))
        if index % parts == number - 1
        and mutation.key not in known
        and re.search(arguments.only, mutation.path)
    ]
    recorded = RecordedTests()
    for module in PRELOADED:
        import_module(module)
    end = time.monotonic() + arguments.minutes * 60
    with _postgres():
        children = []
        for job in range(arguments.jobs):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    _try_all(todo[job :: arguments.jobs], recorded, results, arguments.most_s, end)
                    code = 0
                except Exception:
                    traceback.print_exc()
                finally:
                    os._exit(code)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)


def _try_all(
    todo: Sequence[tuple[int, Mutation]], recorded: RecordedTests, results: Path, most_s: float, end: float
) -> None:
    with Workshop() as workshop:
        for index, mutation in todo:
            if time.monotonic() > end:
                return
            verdict = workshop.judge(mutation, recorded, most_s)
            with results.open("a") as file:
                file.write(json.dumps(vars(verdict)) + "\n")
            print(_row(index, mutation, verdict), flush=True)


class Workshop:
    """Two copies of the project: one for the change, the other without it."""

    def __enter__(self) -> Workshop:
        self._folder = Path(tempfile.mkdtemp(prefix="mutations-"))
        command = ["git", "ls-files", "-coz", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)  # noqa: S603
        for name in listed.stdout.decode().split("\0"):
            if name and (ROOT / name).is_file():
                for copy in ("changed", "unchanged"):
                    target = self._folder / copy / name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(ROOT / name, target)
        return self

    def __exit__(self, *exception: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def judge(self, mutation: Mutation, recorded: RecordedTests, most_s: float) -> Verdict:
        """Makes the change and runs tests until one fails."""
        began = time.monotonic()
        tests = recorded.within(recorded.of(mutation), most_s)
        file = self._folder / "changed" / mutation.path
        source = file.read_bytes()
        self._write(file, mutation.apply(source))
        try:
            caught_by, ran = self._hunt(tests, recorded, mutation.key)
        finally:
            self._write(file, source)
        return Verdict(mutation.key, caught_by, ran, round(time.monotonic() - began, 1))

    def _hunt(self, tests: list[str], recorded: RecordedTests, key: str) -> tuple[str, int]:
        ran = 0
        for group in recorded.groups(tests):
            left = group
            while left:
                ran += len(left)
                failed = self._pytest("changed", left, WAIT_LIMIT_S + 4 * recorded.seconds(left))
                if not failed:
                    break
                if failed not in left:  # the run did not end, or a module cannot be imported
                    assert "exit code" not in failed or self._pytest("unchanged", left, 900.0) == ""
                    return failed, ran
                if not _has_real_io(failed) or not self._pytest("unchanged", [failed], 2 * WAIT_LIMIT_S):
                    return failed, ran
                left = left[left.index(failed) + 1 :]  # this test fails now and then
        if not any(test.startswith("tests/simulation/") for test in tests):
            return "", ran  # simulations do not run these lines
        return self._campaign(str(random.Random(key).randrange(10**6))), ran

    def _campaign(self, seed: str) -> str:
        folder = self._folder / "changed"
        environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(folder / "src"), str(folder)))}
        command = [sys.executable, "-m", "simulation", "--lifetimes", "4000", "--seed", seed]
        ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False)  # noqa: S603
        return f"simulation --seed {seed}" if ran.returncode else ""

    def _pytest(self, copy: str, tests: Sequence[str], limit_s: float) -> str:
        """Returns the first test that fails, or another reason if pytest does not get that far."""
        selected, output = self._folder / "selected.json", self._folder / "output"
        selected.write_text(json.dumps(tests))
        files = sorted({test.partition("::")[0] for test in tests})
        child = os.fork()  # a new interpreter would import pytest again, which takes longer than most tests
        if child == 0:
            _become_pytest(self._folder / copy, files, selected, output)
        code = _wait_for(child, limit_s)
        if code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return ""
        found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output.read_text(), re.MULTILINE)
        return found.group(1) if found else f"pytest: {'no end' if code is None else f'exit code {code}'}"

    @staticmethod
    def _write(file: Path, source: bytes) -> None:
        file.write_bytes(source)
        for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
            compiled.unlink()  # it would be used if both versions had the same size and second


def _has_real_io(test: str) -> bool:
    """True if a test may fail by chance. Others run in virtual time, or without waiting for anything."""
    return test.startswith(("tests/integration", "tests/conformance")) or bool(
        re.search("uvloop|asyncio", test)
    )


def _become_pytest(folder: Path, files: list[str], selected: Path, output: Path) -> NoReturn:
    """Runs pytest in a copy of the project, and ends this process."""
    code = 3
    try:
        os.setsid()
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.chdir(folder)
        for name in [
            name for name in sys.modules if name.partition(".")[0] in ("homing", "support", "tests")
        ]:
            del sys.modules[name]
        paths = [str(folder / name) for name in ("src", ".", "tools")]
        sys.path[:] = paths + [path for path in sys.path if not path.startswith(str(ROOT / "t"))]
        os.environ |= {"PYTHONPATH": os.pathsep.join(paths), "MUTATION_TESTS": str(selected)}
        options = ["-x", "-q", "--tb=no", "-n", "0", "-p", "no:cacheprovider", "-p", "mutation_selection"]
        ignored = "ignore::pytest.PytestAssertRewriteWarning"
        code = int(pytest.main([*options, "-W", ignored, *files]))
        sys.stdout.flush()
    finally:
        os._exit(code)


def _wait_for(child: int, limit_s: float) -> int | None:
    """Returns the exit code of a process, or None if it had to be killed after `limit_s`."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


@contextmanager
def _postgres() -> Iterator[None]:
    """Starts one server for all tests, because a server per run takes longer than most tests."""
    if "TEST_POSTGRES_URL" in os.environ:
        yield
        return
    sys.path.insert(0, str(ROOT / "tests"))
    from support.private_postgres import PrivatePostgres

    with PrivatePostgres() as server:
        os.environ["TEST_POSTGRES_URL"] = server.url
        yield


def show(seed: int, count: int) -> None:
    """Prints a table of all changes with a verdict, and their sum."""
    verdicts = _verdicts(BUILD / f"results-{seed}.jsonl")
    judged = [(index, one) for index, one in enumerate(choose(seed, count)) if one.key in verdicts]
    for index, mutation in judged:
        print(_row(index, mutation, verdicts[mutation.key]))
    caught = sum(bool(verdicts[mutation.key].caught_by) for _, mutation in judged)
    print(f"seed {seed}: {caught} of {len(judged)} changes are caught")


def _verdicts(results: Path) -> dict[str, Verdict]:
    lines = results.read_text().splitlines() if results.exists() else []
    return {verdict.key: verdict for verdict in (Verdict(**json.loads(line)) for line in lines)}


def _row(index: int, mutation: Mutation, verdict: Verdict) -> str:
    place = f"{mutation.path.removeprefix('src/homing/')}:{mutation.line} {mutation.function}"
    change = mutation.describe((ROOT / mutation.path).read_bytes())
    found = verdict.caught_by or f"SURVIVED {verdict.tests} tests"
    return f"{index:>3} {place} | {mutation.kind}: {change} | {found} ({verdict.seconds:.0f} s)"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="record which test runs which line")
    recording.add_argument("suites", nargs="*", help=f"some of {', '.join(RECORDED)}; default all")
    recording.add_argument("--jobs", default="2", help="test processes (default 2)")
    for name, text in (("run", "try the changes of a seed"), ("show", "print the results of a seed")):
        command = commands.add_parser(name, help=text)
        command.add_argument("--seed", type=int, required=True)
        command.add_argument("--count", type=int, default=100, help="number of changes (default 100)")
        if name == "run":
            command.add_argument("--part", default="1/1", help="2/3 tries the second of three parts")
            command.add_argument("--jobs", type=int, default=3, help="processes (default 3)")
            command.add_argument("--only", default="", help="try changes in files that match this pattern")
            command.add_argument(
                "--most-s",
                type=float,
                default=math.inf,
                help="run no more tests per change than take this long",
            )
            command.add_argument("--minutes", type=float, default=600.0, help="begin no change after that")
    return parser


if __name__ == "__main__":
    sys.exit(main())
