"""Runs commands in forks of one process that has imported Homing: each import takes half a second.

A command is still a process of its own, with the arguments, folder, environment, streams and exit code that
it would have if a shell had started it.
"""

from __future__ import annotations

import atexit
import gc
import io
import marshal
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path

import homing.cli.app
import homing.library
import homing.stores.sqlite.store

_LAUNCHER = Path(__file__).with_name("launch_command.py")


def preloaded_command(*argv: str) -> list[str]:
    """Returns a program with arguments that does the same as `homing` with these arguments."""
    return [sys.executable, "-I", "-S", str(_LAUNCHER), str(_server()), *argv]


@cache
def _server() -> Path:
    """Starts the process, which ends with this one, and returns the path of its socket."""
    path = Path(tempfile.mkdtemp(prefix="homing-cli-"), "socket")
    server = subprocess.Popen(
        [sys.executable, __file__, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert server.stdout is not None
    with server.stdout:
        assert server.stdout.readline() == b"ready\n"
    _running.append(server)
    return path


_running: list[subprocess.Popen[bytes]] = []
"""Keeps the pipe open that ends the process once it is closed."""


def _serve(path: Path) -> None:
    """Forks for each request, until the end of stdin. Returns in the process of the command."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(100)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for the forks
        os.write(1, b"ready\n")
        while True:
            ready, _, _ = select.select([listener, sys.stdin], [], [])
            if sys.stdin in ready:
                path.unlink()
                path.parent.rmdir()
                sys.exit()
            connection, _ = listener.accept()
            if os.fork() == 0:
                break
            connection.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with connection:
        _become_command(connection)


def _become_command(connection: socket.socket) -> None:
    """Forks once more. Returns in the process of the command; the other one reports its exit code."""
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    with connection.makefile("rb") as asked:
        argv, folder, environment = marshal.load(asked)
    if command := os.fork():
        _, status = os.waitpid(command, 0)
        connection.sendall(str(os.waitstatus_to_exitcode(status) % 256).encode())
        os._exit(0)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115 (open to the end)
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    sys.argv[1:] = argv


def _measure_coverage(data_file: str) -> None:
    """Measures which lines of the command line this process runs, until it ends. `make test` asks for it."""
    import coverage

    settings = str(Path(__file__).parents[2] / "pyproject.toml")
    measured = coverage.Coverage(
        data_file=data_file, data_suffix=True, source=["homing.cli"], config_file=settings
    )
    measured.set_option("run:disable_warnings", ["no-data-collected", "module-not-measured"])
    measured.start()
    atexit.register(measured.save)
    atexit.register(measured.stop)  # called first


if __name__ == "__main__":
    data_file = os.environ.get("COVERAGE_OF_COMMANDS", "")
    with redirect_stdout(io.StringIO()):
        homing.cli.app.run(["--version"])  # imports all commands
    if data_file:
        import coverage  # noqa: F401 (the forks use it)
    gc.freeze()  # a collection in a fork would copy all of the shared memory
    _serve(Path(sys.argv[1]))
    if data_file:
        _measure_coverage(data_file)
    homing.cli.main()
