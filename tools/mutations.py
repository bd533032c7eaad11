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
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import pytest

from mutation_operators import Mutation, find_mutations
from mutation_recordings import BUILD, RECORDED, ROOT, RecordedTests, record

PRELOADED = (
    *("xdist.plugin", "pytest_cov.plugin", "pytest_asyncio.plugin", "hypothesis", "asyncpg", "msgspec"),
    *("uvloop", "cryptography.x509", "uvicorn", "starlette.applications"),
)
"""Modules that the tests need, imported once for all runs."""

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
        and (mutation.key not in known or (arguments.again and not known[mutation.key].caught_by))
        and re.search(arguments.only, mutation.path)
    ]
    recorded = RecordedTests(arguments.suites.split(","))
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
    return test.startswith(("tests/integration", "tests/conformance", "tests/acceptance")) or bool(
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
            command.add_argument(
                "--again", action="store_true", help="try changes again that survived before"
            )
            command.add_argument(
                "--suites",
                default=",".join(RECORDED),
                help="recordings whose tests are run (default all); the quick ones first, and then "
                "--again with the others, saves much time",
            )
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
