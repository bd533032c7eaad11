"""A temporary folder with server processes that end, and that is removed, as soon as this process ends.

That holds even if this process is killed with `kill -9`: another process, the guard, reads from a pipe of
this one. When the pipe is closed, the guard ends the servers, also suspended ones, and removes the folder.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Self

_PATIENCE_S = 60
_QUIT_S = 10
"""Time that a server has to end itself after the guard's signal."""
_STATE, _GROUP = 0, 2
"""Fields of `/proc/PID/stat` after the program's name."""
_STOPPED = ("T", "t", "Z", "X", "")
"""States of threads that do not run any more. An empty one stands for a thread that has ended."""


class GuardedFolder:
    """The folder and its guard. Programs run in the folder; root runs them as another user."""

    def __init__(self, prefix: str, *, unprivileged: bool = True) -> None:
        """`unprivileged=False` is for programs that do not refuse to run as root."""
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        self._user = _unprivileged_user() if unprivileged and os.geteuid() == 0 else None
        if self._user is not None:
            account = pwd.getpwnam(self._user)
            os.chown(self.path, account.pw_uid, account.pw_gid)
        command = [sys.executable, "-I", "-S", __file__, str(self.path)]
        self._guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all processes of the folder and removes it."""
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait(timeout=_PATIENCE_S)

    def start(
        self, command: Sequence[str], log: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Starts a program that writes to the file `log` of the folder."""
        with (self.path / log).open("ab") as output:
            process = subprocess.Popen(
                command,
                env={**os.environ, "LC_ALL": "C", **(environment or {})},
                user=self._user,
                cwd=self.path,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.watch(process)
        return process

    def watch(self, process: subprocess.Popen[bytes]) -> None:
        """Has the guard end a process that was started elsewhere."""
        self._report(f"+{process.pid}")

    def ended(self, process: subprocess.Popen[bytes]) -> None:
        """Waits for the end of a process, which the guard may then forget."""
        process.wait(timeout=_PATIENCE_S)
        self._report(f"-{process.pid}")

    def run(self, *command: str) -> None:
        """Runs a program until it ends. Raises `AssertionError` with its output if it fails."""
        process = self.start(command, "programs.log")
        self.ended(process)
        assert process.returncode == 0, f"{command} failed: {(self.path / 'programs.log').read_text()}"

    def own(self, path: Path) -> None:
        """Gives a file or folder to the user that the programs run as."""
        if self._user is not None:
            shutil.chown(path, self._user)

    def _report(self, line: str) -> None:
        assert self._guard.stdin is not None
        self._guard.stdin.write(f"{line}\n")
        self._guard.stdin.flush()


def family(pid: int) -> list[int]:
    """Returns the process and its children, which PostgreSQL puts into process groups of their own."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        children = ""
    return [pid, *map(int, children.split())]


def signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    """Sends a signal to all processes that still exist."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def group(pgid: int) -> list[int]:
    """Returns the processes of a process group."""
    return [int(path.name) for path in Path("/proc").glob("[0-9]*") if _stat(path, _GROUP) == str(pgid)]


def suspend_all(pids: Sequence[int]) -> None:
    """Suspends processes, and waits until all their threads have stopped, which takes a while under load."""
    signal_all(pids, signal.SIGSTOP)
    until = time.monotonic() + _PATIENCE_S
    while not all(_is_suspended(pid) for pid in pids):
        assert time.monotonic() < until, f"not suspended within {_PATIENCE_S} s"
        time.sleep(0.001)


def _is_suspended(pid: int) -> bool:
    """Returns True if every thread of the process has stopped or ended."""
    return all(_stat(thread, _STATE) in _STOPPED for thread in Path(f"/proc/{pid}/task").glob("*"))


def _stat(process: Path, field: int) -> str:
    """Returns a field of the kernel's statistics, counted from behind the program's name."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[field]
    except OSError:  # it has ended
        return ""


def _unprivileged_user() -> str:
    """Returns a user for programs that refuse to run as root, as PostgreSQL and PgBouncer do."""
    names = {account.pw_name for account in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _guard(folder: str) -> None:
    """Collects process ids until the pipe is closed, then ends these processes and removes the folder."""
    running: set[int] = set()
    for line in sys.stdin:
        (running.add if line[0] == "+" else running.discard)(int(line[1:]))
    pids = [one for pid in running for one in family(pid)]
    signal_all(running, signal.SIGQUIT)
    signal_all(pids, signal.SIGCONT)
    until = time.monotonic() + _QUIT_S
    while time.monotonic() < until and any(map(_runs, pids)):
        time.sleep(0.01)
    signal_all(filter(_runs, pids), signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


def _runs(pid: int) -> bool:
    """Returns False if the process has ended, whether or not its parent has read its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


if __name__ == "__main__":
    _guard(sys.argv[1])
