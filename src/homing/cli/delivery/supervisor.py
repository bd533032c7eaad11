"""The parent of several `homing serve` processes: starts them, replaces those that die, stops them."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable

from homing.cli.common.exit_codes import ExitCode

log = logging.getLogger("homing.serve")


_HANDLED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGALRM, signal.SIGHUP)

_STABLE_AFTER_S = 10.0
"""Seconds of running after which a process that dies is replaced at once.

Others are replaced after a pause, to avoid a restart loop.
"""

_LONGEST_PAUSE_S = 30.0


ChildMain = Callable[[int, int], int]
"""Main function of a child. Takes the child's number and a pipe that closes when the parent exits.

It returns the exit code. SIGTERM, SIGINT and SIGHUP stay blocked until the child handles them, so that none
is lost at startup.
"""


class Supervisor:
    """Runs `work` in several forked processes. Because it forks, it has no threads and no event loop."""

    def __init__(self, processes: int, work: ChildMain) -> None:
        self._processes = processes
        self._work = work
        self._running: dict[int, tuple[int, float]] = {}
        """Maps process id to (number, start time)."""
        self._to_start: dict[int, float] = {}
        """Maps process number to the monotonic time at which to start it again."""
        self._pauses: dict[int, float] = {}
        self._stopping = False
        self._hard = False
        self._has_terminal = os.isatty(0)
        self._alive, self._parent_end = os.pipe()

    def run(self) -> int:
        """Runs until all processes have ended after a signal, and returns the exit code.

        A second signal aborts the work in flight.
        """
        signal.signal(signal.SIGCHLD, lambda *_: None)  # if ignored, sigwait misses it on some systems
        signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED_SIGNALS)
        for number in range(self._processes):
            self._start(number)
        while self._running or self._to_start:
            self._handle(signal.Signals(signal.sigwait(_HANDLED_SIGNALS)))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED_SIGNALS)
        return ExitCode.NO if self._hard else ExitCode.OK

    def _handle(self, received: signal.Signals) -> None:
        if received is signal.SIGCHLD:
            self._reap()
        elif received is signal.SIGHUP and not self._is_terminal_gone():
            for pid in self._running:
                os.kill(pid, received)
        elif received is not signal.SIGALRM:
            self._hard = self._stopping
            self._stopping = True
            self._to_start.clear()
            for pid in self._running:
                os.kill(pid, signal.SIGTERM if received is signal.SIGHUP else received)
        self._start_due()

    def _is_terminal_gone(self) -> bool:
        return self._has_terminal and not os.isatty(0)

    def _reap(self) -> None:
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
                0.0 if lived_s > _STABLE_AFTER_S else min(self._pauses.get(number, 0.5) * 2, _LONGEST_PAUSE_S)
            )
            self._pauses[number] = pause_s or 0.5
            self._to_start[number] = time.monotonic() + pause_s
            code = os.waitstatus_to_exitcode(status)
            how = (
                f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            )
            log.warning("process %d (pid %d) %s; starting a replacement", number, pid, how)

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
            os.close(self._parent_end)
            os.setpgrp()  # Ctrl-C must reach only the parent, which forwards it: two signals would abort
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGCHLD, signal.SIGALRM))
            code = self._work(number, self._alive)
        except BaseException:
            log.exception("process %d failed", number)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
