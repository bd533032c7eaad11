"""Several processes that serve one socket: the parent starts them, replaces one that died, and ends them."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable

from homing.cli.exits import ExitCode

log = logging.getLogger("homing.serve")

_WAITED_FOR = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGALRM)
_SETTLED_S = 10.0
"""One that lived for this long is replaced at once; others after a pause, so that a fault does not spin."""
_LONGEST_PAUSE_S = 30.0

Work = Callable[[int, int], int]
"""What process N does until it is told to stop (the pipe ends when the parent is gone); its exit code.

SIGTERM and SIGINT are held back until it listens to them (`stopping.Signals`): none is lost at the start.
"""


class Supervisor:
    """Runs `work` in as many processes as asked for. It keeps no threads and no event loop: it forks."""

    def __init__(self, processes: int, work: Work) -> None:
        self._processes = processes
        self._work = work
        self._running: dict[int, tuple[int, float]] = {}
        """Process id → its number, and when it began."""
        self._to_start: dict[int, float] = {}
        """Number → when to start it."""
        self._pauses: dict[int, float] = {}
        self._stopping = False
        self._hard = False
        self._alive, self._held = os.pipe()

    def run(self) -> int:
        """Until all have ended after a signal; a second signal breaks off what they have under way."""
        signal.signal(signal.SIGCHLD, lambda *_: None)  # ignored, it would not be waited for everywhere
        signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)
        for number in range(self._processes):
            self._start(number)
        while self._running or self._to_start:
            self._hear(signal.Signals(signal.sigwait(_WAITED_FOR)))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WAITED_FOR)
        return ExitCode.NO if self._hard else ExitCode.OK

    def _hear(self, told: signal.Signals) -> None:
        if told is signal.SIGCHLD:
            self._bury()
        elif told is not signal.SIGALRM:
            self._hard = self._stopping
            self._stopping = True
            self._to_start.clear()
            for pid in self._running:
                os.kill(pid, told)
        self._start_due()

    def _bury(self) -> None:
        for pid in list(self._running):
            found, status = os.waitpid(pid, os.WNOHANG)
            if not found:
                continue
            number, began = self._running.pop(pid)
            if self._stopping:
                self._hard = self._hard or os.waitstatus_to_exitcode(status) != 0
                continue
            lived_s = time.monotonic() - began
            pause_s = (
                0.0 if lived_s > _SETTLED_S else min(self._pauses.get(number, 0.5) * 2, _LONGEST_PAUSE_S)
            )
            self._pauses[number] = pause_s or 0.5
            self._to_start[number] = time.monotonic() + pause_s
            code = os.waitstatus_to_exitcode(status)
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            log.warning("process %d (%d) %s; another takes its place", number, pid, how)

    def _start_due(self) -> None:
        now = time.monotonic()
        for number in [one for one, at in self._to_start.items() if at <= now]:
            del self._to_start[number]
            self._start(number)
        wait_s = min(self._to_start.values(), default=now) - now
        signal.setitimer(signal.ITIMER_REAL, max(wait_s, 0.01) if self._to_start else 0)

    def _start(self, number: int) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            self._running[pid] = (number, time.monotonic())
            return
        code = int(ExitCode.NO)
        try:
            os.close(self._held)
            os.setpgrp()  # Ctrl-C reaches the parent alone, which passes it on: twice would be a hard stop
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGCHLD, signal.SIGALRM))
            code = self._work(number, self._alive)
        except BaseException:
            log.exception("process %d broke off", number)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
