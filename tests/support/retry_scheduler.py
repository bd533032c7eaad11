"""`homing bridge rabbitmq` as a separate process, configured by the source's environment variables alone."""

from __future__ import annotations

import http.client
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from support.cli_driver import Cli

PATIENCE_S = 60

# PR_SET_PDEATHSIG: a process, which may be suspended, must not outlive the one that started it.
_PROGRAM = """
import ctypes, runpy, signal
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
runpy.run_module("homing.cli", run_name="__main__", alter_sys=True)
"""


class RetryScheduler:
    """A running process. Its output is in the file `scheduler.log` of its folder."""

    def __init__(self, folder: Path, variables: Mapping[str, str], *flags: str, number: int = 0) -> None:
        self.log = folder / f"scheduler{number or ''}.log"
        self._command = [sys.executable, "-c", _PROGRAM, "bridge", "rabbitmq", *flags]
        self._folder = folder
        self._env = Cli(folder).env(HTTP_PORT="0", **variables)
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Starts the process, and waits until it serves its probes."""
        assert self.process is None
        begun = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                env=self._env,
            )
        until = time.monotonic() + PATIENCE_S
        while True:
            text = self.log.read_bytes()[begun:].decode()
            found = re.search(r"metrics on http://127\.0\.0\.1:(\d+)/", text)
            if found and "started" in text:
                self.port = int(found[1])
                return
            assert self.process.poll() is None, text
            assert time.monotonic() < until, text
            time.sleep(0.02)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def get(self, path: str) -> tuple[int, str]:
        """Returns the status and body of one of its pages."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def metrics(self) -> dict[str, float]:
        """Returns all series by name and labels, as Prometheus writes them."""
        lines = self.get("/metrics")[1].splitlines()
        return {
            name: float(value)
            for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))
        }

    def until_ready(self) -> None:
        """Waits until its bridge consumes."""
        until = time.monotonic() + PATIENCE_S
        while (answer := self.get("/readyz"))[0] != 200:
            assert time.monotonic() < until, (answer, self.log.read_text())
            time.sleep(0.02)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self) -> int:
        """Stops the process with SIGTERM and returns its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE_S)
        self.process = None
        return code

    def kill(self) -> None:
        """Kills the process with `kill -9`, if it runs."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait(PATIENCE_S)
