"""Detects code that blocks the event loop, and logs the provider that it belongs to."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from traceback import StackSummary, walk_stack
from types import FrameType

from homing.engine.delivery.attempts import call_provider
from homing.engine.provider_roster import Listed

log = logging.getLogger("homing.watchdog")

_BLOCKED_MS = 1_000
"""Time without a sign of life of the event loop after which it counts as blocked."""

_MAX_FRAMES = 12
"""Number of innermost stack frames in the log."""


class LoopWatchdog:
    """A thread that watches the event loop of a worker.

    While a provider's async function blocks the loop, no other attempt can end and no lease is extended. The
    function cannot be interrupted, but its provider can be named.
    """

    def __init__(self, blocked_ms: int = _BLOCKED_MS) -> None:
        self._blocked_s = blocked_ms / 1000
        self._stopped = threading.Event()
        self._alive_at = 0.0
        """Monotonic time of the last sign of life of the loop, in seconds."""
        self._beat_timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Starts to watch the running loop."""
        self._stopped = threading.Event()
        loop = asyncio.get_running_loop()
        self._beat(loop)
        watched = threading.get_ident(), self._stopped
        threading.Thread(target=self._watch, args=watched, name="homing-watchdog", daemon=True).start()

    def stop(self) -> None:
        """Stops watching."""
        self._stopped.set()
        if self._beat_timer is not None:
            self._beat_timer.cancel()
            self._beat_timer = None

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self._alive_at = time.monotonic()
        self._beat_timer = loop.call_later(self._blocked_s / 4, self._beat, loop)

    def _watch(self, loop_thread: int, stopped: threading.Event) -> None:
        reported, checked_at = 0.0, time.monotonic()
        while not stopped.wait(self._blocked_s / 2):
            last_check_at, checked_at = checked_at, time.monotonic()
            if checked_at - last_check_at > self._blocked_s:
                continue  # this thread stood still too, so the whole process was suspended
            alive_at = self._alive_at
            blocked_s = checked_at - alive_at
            if blocked_s > self._blocked_s and alive_at != reported:
                reported = alive_at
                self._report(blocked_s, sys._current_frames().get(loop_thread))

    def _report(self, blocked_s: float, frame: FrameType | None) -> None:
        provider = _provider_of(frame)
        log.warning(
            "the event loop has been blocked for %.1f s by %s; no other attempt can end meanwhile. An async "
            "function must not block; a plain function may, because it runs in a thread\n%s",
            blocked_s,
            f"provider {provider}" if provider else "code outside of a provider",
            "".join(StackSummary.extract(walk_stack(frame), limit=_MAX_FRAMES).format()),
        )


def _provider_of(frame: FrameType | None) -> str:
    """Returns the id of the provider whose call contains this frame, or an empty string."""
    while frame is not None:
        if frame.f_code is call_provider.__code__ and isinstance(
            listed := frame.f_locals.get("listed"), Listed
        ):
            return listed.id
        frame = frame.f_back
    return ""
