"""Gives due times to the timers after each commit, and lets the timers wake the worker of this process.

Nothing here can delay or fail an acceptance or a settlement. Due times wait in bounded queues, and a timer
that fails or hangs loses them. The worker then finds the notifications by polling the store.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from homing.core.errors import HomingError
from homing.core.lifecycle.claims import Acceptance, Submission
from homing.core.lifecycle.due_times import DueTime, accepted_due_times, settled_due_times
from homing.core.notifications import Priority
from homing.core.ports.observers import SettledClaim
from homing.core.ports.runtime import Clock
from homing.core.ports.stores import SupportsWakeUps
from homing.core.ports.timers import AssignedTimer, Timer, TimerState, Wake
from homing.engine.plug_in_calls import call_within

log = logging.getLogger("homing.timers")

_BATCH = 500
"""Maximum number of due times per call of `Timer.schedule`."""

_QUEUE = 10_000
"""Maximum number of due times that wait for one timer. Further ones are discarded."""

_CALL_TIMEOUT_S = 5

_CLOSE_TIMEOUT_S = 1
"""Time for due times that still wait when the process stops."""

_UNNOTIFIED_POLLS = 5
"""Number of polls per `worker.poll_ms` while nothing reports what other processes commit."""

_FIRST_PAUSE_MS, _MAX_PAUSE_MS = 1_000, 30_000
"""First and longest pause after a failed call. Each further failure doubles the pause."""


class LocalTimer:
    """The timer that every process has: it wakes the worker of the same process, without any I/O."""

    def __init__(self, wake: Wake) -> None:
        self._wake = wake

    async def open(self, store_now_ms: Callable[[], int]) -> None:
        """Does nothing: there is no connection."""

    async def close(self) -> None:
        """Does nothing: there is no connection."""

    async def schedule(self, batch: Sequence[DueTime]) -> None:
        """Wakes the worker at the earliest due time."""
        self.schedule_now(batch)

    def schedule_now(self, batch: Sequence[DueTime]) -> None:
        """Works like `schedule`, without a task or queue in between.

        The claim that follows returns when the next notification is due.
        """
        self._wake(min([one.due_at for one in batch]))

    def wake_at_first(self, due: Iterable[DueTime], now: int) -> None:
        """Works like `schedule_now`, but needs only the first of them if it is due `now`, as most are."""
        earliest: int | None = None
        for one in due:
            if earliest is None or one.due_at < earliest:
                earliest = one.due_at
                if earliest <= now:
                    break
        if earliest is not None:
            self._wake(earliest)

    async def listen(self, wake: Wake) -> None:
        """Waits until cancelled. The worker is woken by `schedule`."""
        await asyncio.Event().wait()


class StoreTimer:
    """The wake-ups of a store that reports its commits to other processes, as PostgreSQL does with NOTIFY."""

    def __init__(self, store: SupportsWakeUps, wake_inbox: Callable[[], None]) -> None:
        self._store = store
        self._wake_inbox = wake_inbox

    async def open(self, store_now_ms: Callable[[], int]) -> None:
        """Does nothing: the store is open already."""

    async def close(self) -> None:
        """Does nothing: the store is closed by the engine."""

    async def schedule(self, batch: Sequence[DueTime]) -> None:
        """Does nothing: the transaction that wrote the due times reports itself when it commits."""

    @property
    def is_notified(self) -> bool:
        """True while the store's reports arrive."""
        return self._store.hears

    async def listen(self, wake: Wake) -> None:
        """Passes on the store's reports until cancelled."""
        await self._store.listen(wake, self._wake_inbox)


class Timers:
    """All timers of one process.

    The local timer and the store's own wake-ups are always used. The timers in `given` reach the workers of
    other processes.
    """

    def __init__(
        self,
        given: Mapping[str, AssignedTimer],
        *,
        wake: Wake,
        store_timer: StoreTimer | None,
        store_now_ms: Callable[[], int],
        clock: Clock,
    ) -> None:
        self.given = given
        self.wake = wake
        self._local = LocalTimer(wake)
        self._store_now_ms = store_now_ms
        self._clock = clock
        self._feeds = [_TimerFeed(name, one, store_now_ms, clock) for name, one in given.items()]
        self._store_timer = store_timer

    def accepted(self, batch: Sequence[Submission], answers: Sequence[Acceptance]) -> None:
        """Schedules newly accepted notifications. Called after the commit. Never raises and never waits."""
        try:
            now = self._store_now_ms()
            due = accepted_due_times(batch, answers, now)
            if self._feeds:
                self.schedule(list(due))
            else:
                self._local.wake_at_first(due, now)
        except Exception:  # the requests are stored, so their caller must get no error
            log.exception("accepted notifications could not be scheduled; workers find them by polling")

    def settled(self, batch: Sequence[SettledClaim], refused: Collection[str]) -> None:
        """Schedules notifications that wait for another attempt. Called after the commit, like `accepted`."""
        try:
            self.schedule(settled_due_times(batch, refused, self._store_now_ms()))
        except Exception:  # the settlements are stored
            log.exception("settled notifications could not be scheduled; workers find them by polling")

    def rescheduled(self, changed: Mapping[str, Priority], delay_ms: int = 0) -> None:
        """Schedules notifications, by id, that a command has made due after `delay_ms`."""
        due_at = self._store_now_ms() + delay_ms
        self.schedule([DueTime(id_, due_at, priority) for id_, priority in changed.items()])

    def schedule(self, due: Sequence[DueTime]) -> None:
        """Schedules notifications whose due times have been committed. Never raises and never waits."""
        if not due:
            return
        self._local.schedule_now(due)
        for feed in self._feeds:
            feed.add(due)

    def states(self) -> dict[str, TimerState]:
        """Returns the state of each given timer, by name."""
        return {feed.name: feed.state() for feed in self._feeds}

    @property
    def is_notified(self) -> bool:
        """True while the store reports the notifications that other processes accept."""
        return self._store_timer is not None and self._store_timer.is_notified

    def poll_interval_ms(self, poll_ms: int) -> int:
        """Returns the longest sleep of an idle worker, for the setting `worker.poll_ms`.

        It is a fifth of that while the store's reports do not arrive, as behind some poolers, unless other
        timers listen for all priorities.
        """
        if self._store_timer is None or self._store_timer.is_notified or self._hears_all_priorities():
            return poll_ms
        return max(1, poll_ms // _UNNOTIFIED_POLLS)

    def _hears_all_priorities(self) -> bool:
        return frozenset().union(*[feed.heard_priorities for feed in self._feeds]).issuperset(Priority)

    def start(self) -> None:
        """Starts to give due times to the timers."""
        for feed in self._feeds:
            feed.start()

    async def listen(self) -> None:
        """Lets all timers wake the worker of this process, until cancelled."""
        listening = [feed.listen(self.wake) for feed in self._feeds]
        if self._store_timer is not None:
            listening.append(self._listen_to_store(self._store_timer))
        await asyncio.gather(*listening)

    async def _listen_to_store(self, timer: StoreTimer) -> None:
        """Listens until cancelled, and again after a pause if the store fails or returns."""
        while True:
            try:
                await call_within(partial(timer.listen, self.wake), None)
                log.warning("the store stopped reporting commits, workers wait for their next poll")
            except Exception as error:
                log.warning(
                    "the store's reports of commits are lost, workers wait for their next poll: %s",
                    type(error).__name__,
                )
            await self._clock.sleep_ms(_MAX_PAUSE_MS)

    async def close(self) -> None:
        """Gives the timers the due times that still wait, for at most a second, and closes them."""
        await asyncio.gather(*(feed.close() for feed in self._feeds))


class _TimerFeed:
    """Queue of due times for one timer, with the task that empties it."""

    def __init__(
        self, name: str, assigned: AssignedTimer, store_now_ms: Callable[[], int], clock: Clock
    ) -> None:
        self.name = name
        self._timer: Timer = assigned.timer
        self._priorities = assigned.priorities
        self._store_now_ms = store_now_ms
        self._clock = clock
        self._waiting: deque[DueTime] = deque()
        self._arrived = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._opening = asyncio.Lock()
        self._opened = False
        self._failed: set[str] = set()
        """Names of the calls that failed last: `schedule`, `listen` or both."""
        self._is_listening = False
        self._giving = 0
        """Number of due times in the call of `schedule` that is going on."""
        self._scheduled = 0
        self._discarded = 0
        self._failures = 0
        self._feeding: asyncio.Task[None] | None = None

    def state(self) -> TimerState:
        return TimerState(
            connected=not self._failed,
            scheduled=self._scheduled,
            discarded=self._discarded,
            failures=self._failures,
            waiting=len(self._waiting) + self._giving,
        )

    @property
    def heard_priorities(self) -> frozenset[Priority]:
        """The timer's priorities while it listens, and none while it does not."""
        return self._priorities if self._is_listening else frozenset()

    def add(self, due: Sequence[DueTime]) -> None:
        """Queues the due times of the timer's priorities. Discards what exceeds the bound of the queue."""
        own = [one for one in due if one.priority in self._priorities]
        room = max(0, _QUEUE - len(self._waiting))
        self._discarded += len(own) - len(own[:room])
        if own[:room]:
            self._waiting += own[:room]
            self._empty.clear()
            self._arrived.set()

    def start(self) -> None:
        if self._feeding is None:
            self._feeding = asyncio.create_task(self._feed(), name=f"homing-timer-{self.name}")

    async def close(self) -> None:
        if self._feeding is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._empty.wait()
        self._feeding.cancel()
        await asyncio.gather(self._feeding, return_exceptions=True)
        self._feeding = None
        if not self._opened:
            return
        self._opened = False
        try:
            await call_within(self._timer.close, 1000 * _CALL_TIMEOUT_S)
        except Exception as error:  # a timer may raise anything, or hang
            log.warning("timer %s could not be closed: %s", self.name, type(error).__name__)

    async def listen(self, wake: Wake) -> None:
        """Listens until cancelled, and again after a pause if the timer fails or returns."""

        pause_ms = _FIRST_PAUSE_MS

        def heard(due_at: int = 0) -> None:
            nonlocal pause_ms
            pause_ms = _FIRST_PAUSE_MS
            self._is_listening = True
            self._found("listen")
            wake(due_at)

        while True:
            try:
                await call_within(partial(self._open_and_listen, heard), None)
                self._lost("listen", "it stopped listening")
            except Exception as error:  # a timer may raise anything
                self._lost("listen", _describe(error))
            self._is_listening = False
            await self._clock.sleep_ms(pause_ms)
            pause_ms = min(_MAX_PAUSE_MS, 2 * pause_ms)

    async def _open_and_listen(self, heard: Wake) -> None:
        await self._open()
        await self._timer.listen(heard)

    async def _feed(self) -> None:
        pause_ms = _FIRST_PAUSE_MS
        while True:
            await self._arrived.wait()
            batch = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
            if not self._waiting:
                self._arrived.clear()
            self._giving = len(batch)
            try:
                await call_within(partial(self._schedule, batch), 1000 * _CALL_TIMEOUT_S)
            except Exception as error:  # a timer may raise anything, or hang
                self._giving = 0
                self._discarded += len(batch)
                self._lost("schedule", _describe(error))
                await self._clock.sleep_ms(pause_ms)
                pause_ms = min(_MAX_PAUSE_MS, 2 * pause_ms)
            else:
                self._giving = 0
                self._scheduled += len(batch)
                self._found("schedule")
                pause_ms = _FIRST_PAUSE_MS
            if not self._waiting:
                self._empty.set()

    async def _schedule(self, batch: Sequence[DueTime]) -> None:
        await self._open()
        await self._timer.schedule(batch)

    async def _open(self) -> None:
        async with self._opening:
            if not self._opened:
                await self._timer.open(self._store_now_ms)
                self._opened = True

    def _lost(self, call: str, why: str) -> None:
        self._failures += 1
        if not self._failed:
            log.warning("timer %s is unavailable, workers wait for their next poll: %s", self.name, why)
        self._failed.add(call)

    def _found(self, call: str) -> None:
        if self._failed:
            self._failed.discard(call)
            if not self._failed:
                log.info("timer %s is available again", self.name)


def _describe(error: Exception) -> str:
    """Returns the text of Homing's own errors. The texts of others may contain secrets."""
    return str(error) if isinstance(error, HomingError) else type(error).__name__
