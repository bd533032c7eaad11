"""An older build and this one share a store, as they do while an installation is upgraded.

The older build is the commit in the file PREVIOUS, taken from the history of this clone. It runs in processes
of its own, with the installed dependencies.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from support.postgres_servers import skip_or_fail

_HERE = Path(__file__).parent
_PROJECT = _HERE.parents[1]
_THIS_BUILD = _PROJECT / "src"


class Program:
    """A running `library_program`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._answer()

    def __call__(self, name: str, argument: Any = None) -> Any:
        assert self._process.stdin is not None
        print(json.dumps([name, argument]), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the program has ended, see its error output"
        return json.loads(line)


@contextmanager
def running(build: Path, store: str) -> Iterator[Program]:
    """Runs the program with the build in this folder. It has opened the store, and so migrated it."""
    process = subprocess.Popen(
        [sys.executable, str(_HERE / "library_program.py"), store],
        env={**os.environ, "PYTHONPATH": str(build), "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            program = Program(process)
            assert Path(program("build")).is_relative_to(build)
            yield program
        finally:
            assert process.stdin is not None
            process.stdin.close()  # the program ends at the end of its input
            assert process.wait(60) == 0


@pytest.fixture(scope="session")
def older_build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the package as it was at the commit in PREVIOUS."""
    commit = (_HERE / "PREVIOUS").read_text().strip()
    archive = subprocess.run(
        ["git", "archive", commit, "src/homing"], cwd=_PROJECT, capture_output=True, check=False
    )
    if archive.returncode:
        skip_or_fail(f"older build: git has no commit {commit} here ({archive.stderr.decode().strip()})")
    folder = tmp_path_factory.mktemp("older")
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder / "src"


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store."""
    if request.param == "sqlite":
        return str(tmp_path / "homing.db")
    url: str = request.getfixturevalue("postgres_url")
    return url


Run = Callable[[Path], Program]


@pytest.fixture
def run(store: str) -> Iterator[Run]:
    """Starts a program with this build on the store. It ends with the test."""
    with ExitStack() as programs:
        yield lambda build: programs.enter_context(running(build, store))


def takes_turns(one: Program, other: Program) -> None:
    """Each program continues what the other has begun: it delivers, retries, resends, cancels and reads."""
    sent = one("send", "ada@example.org")
    other("process", [sent])
    assert one("status", sent) == other("status", sent) == ["sent", 1, None]

    for program in (one, other):
        program("reach", False)
    failed = one("send", "grace@example.org")
    other("process", [failed])
    status, attempts, error = one("status", failed)
    assert (status, attempts) == ("failed", 2)
    assert "the loft is closed" in error
    assert one("attempts", failed) == other("attempts", failed)

    for program in (one, other):
        program("reach", True)
    again = one("resend", failed)
    other("process", [again])
    assert one("status", again)[0] == "sent"
    other("acknowledge", failed)
    assert one("status", failed) == other("status", failed)

    cancelled = one("send", "alan@example.org")
    assert other("cancel", cancelled) is True
    assert one("status", cancelled) == other("status", cancelled)


def test_an_older_build_starts_on_the_schema_of_this_one(run: Run, older_build: Path) -> None:
    newer = run(_THIS_BUILD)
    older = run(older_build)
    takes_turns(newer, older)
    takes_turns(older, newer)


def test_an_older_build_keeps_working_while_this_one_migrates_its_schema(run: Run, older_build: Path) -> None:
    older = run(older_build)
    waiting = older("send", "ada@example.org")
    newer = run(_THIS_BUILD)
    newer("process", [waiting])
    assert older("status", waiting) == newer("status", waiting) == ["sent", 1, None]
    takes_turns(older, newer)
    takes_turns(newer, older)


def test_this_build_publishes_the_events_of_both(run: Run, older_build: Path) -> None:
    """Events that an older build stores go to the sinks that this build has registered."""
    newer, older = run(_THIS_BUILD), run(older_build)
    ids = []
    for sender, worker in ((older, newer), (newer, older)):
        ids.append(sender("send", "ada@example.org"))
        worker("process", ids)
    newer("publish")
    heard = [tuple(event) for event in newer("heard")]
    assert len(heard) == len(set(heard)), "an event was published twice"
    assert sorted({id for _, id in heard}) == sorted(ids)
    assert older("heard") == []
