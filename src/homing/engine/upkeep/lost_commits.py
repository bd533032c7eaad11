"""Notices that the store's history may have gone back, and reports what this process knows to be lost.

A failover to a standby that lagged behind, or a restore, takes the store back to an earlier state.
Notifications that were accepted in between are gone, although their senders have an id. They cannot be
brought back from here, but the process that acknowledged them knows which ones they are.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TypeVar

from homing.core.errors import StoreError, StoreRejected
from homing.core.lifecycle.claims import Acceptance
from homing.core.lifecycle.events import format_time
from homing.core.ports.runtime import Clock
from homing.core.ports.stores import Backend, Entry, Retention
from homing.engine.operations.policies import EVERY_TENANT
from homing.engine.upkeep.alerts import Alerts

_T = TypeVar("_T")

log = logging.getLogger("homing.store")

_REMEMBERED_MS = 10 * 60_000
"""Ids are remembered for this long after they were acknowledged."""

_MAX_IDS = 50_000
"""Maximum number of remembered ids. The oldest are forgotten first."""

_IDS_PER_READ = 1_000

_MAX_REPORTED_IDS = 100

_PAUSE_MS = 500
"""Pause after which a report is tried again while the store is unavailable."""

_PURGE_KIND, _LAST_PURGE = "purge", "notifications"
"""Kind and key of the entry that says up to which time notifications may have been purged."""

_Batch = tuple[int, list[tuple[str, ...]]]
"""(epoch milliseconds, ids of each request) of requests that were acknowledged together."""


class LostCommits:
    """Remembers the ids that this process has acknowledged, and looks them up once the history changes."""

    def __init__(self, backend: Backend, clock: Clock, alerts: Alerts, retention: Retention) -> None:
        """A notification may be purged once its retention is over, so its id is not remembered for longer."""
        self._backend = backend
        self._clock = clock
        self._alerts = alerts
        self._kept_ms = _shortest_ms(retention)
        self._acknowledged: deque[_Batch] = deque()
        """The acknowledged batches, the oldest first."""
        self._ids = 0
        """Number of ids in `_acknowledged`."""
        self._reported: set[str] = set()
        """Remembered ids that were reported as lost. Each is reported once."""
        self._history = ""
        self._actions: list[Callable[[], Awaitable[object]]] = []
        self._suspects: list[_Batch] | None = None
        """What was remembered when the history changed. None if it was looked up since."""
        self._report: asyncio.Task[None] | None = None

    def on_change(self, action: Callable[[], Awaitable[object]]) -> None:
        """Calls `action` each time the history has changed. It drops or reads again what it has cached."""
        self._actions.append(action)

    def begin(self) -> None:
        """Takes the store's current history as the one that changes are compared with."""
        self._history = self._backend.history

    async def close(self) -> None:
        """Ends a report that is not complete."""
        if self._report is not None:
            self._report.cancel()
            await asyncio.gather(self._report, return_exceptions=True)

    def acknowledged(self, answers: Sequence[Acceptance]) -> None:
        """Remembers the new ids of committed requests. Hot path: called once per batch."""
        now, batches = self._clock.now_ms(), self._acknowledged
        new_ids = [_new_ids(answer) if answer.duplicates else answer.ids for answer in answers]
        if requests := [ids for ids in new_ids if ids]:
            batches.append((now, requests))
            self._ids += sum(map(len, requests))
        self.check()  # with these ids: the history may have changed since their commit
        while len(batches) > 1 and (self._ids > _MAX_IDS or batches[0][0] <= now - _REMEMBERED_MS):
            self._ids -= sum(map(len, batches.popleft()[1]))

    def check(self) -> None:
        """Starts a report if the store's history has changed since the last call."""
        history = self._backend.history
        if history == self._history:
            return
        self._history, self._suspects = history, list(self._acknowledged)
        if self._report is None or self._report.done():
            self._report = asyncio.create_task(self._report_changes(), name="homing-lost-commits")

    async def record_purge(self, retention: Retention) -> None:
        """Records which notifications a purge removes, so that no process reports them as lost."""
        until = await self._backend.now_ms() - _shortest_ms(retention)
        if until > await self._purged_until():
            entry = Entry(
                tenant=EVERY_TENANT, kind=_PURGE_KIND, key=_LAST_PURGE, value={"until": until}, version=-1
            )
            await self._backend.put([entry], who="purge")

    async def _purged_until(self) -> int:
        """Returns the store's time up to which notifications may have been purged by an operator."""
        entries = await self._backend.get_many(EVERY_TENANT, _PURGE_KIND, [_LAST_PURGE])
        until: int = entries[_LAST_PURGE].value["until"] if entries else 0
        return until

    async def _find_purged_until(self) -> int:
        """Returns the time by this process's clock up to which acknowledged notifications may be purged."""
        ahead_ms = self._clock.now_ms() - await self._backend.now_ms()
        return max(self._clock.now_ms() - self._kept_ms, await self._purged_until() + ahead_ms)

    async def _report_changes(self) -> None:
        """Drops what the engine has cached, and reports the acknowledged notifications that are gone.

        If the history changes again meanwhile, looks once more.
        """
        try:
            while (suspects := self._suspects) is not None:
                self._suspects = None
                await self._until_available(self._run_actions)
                if lost := await self._find_lost(suspects):
                    self._reported |= lost.keys()
                    await self._raise_alert(lost)
                else:
                    log.info(
                        "the store may have lost commits, but none of %d recent notifications", self._ids
                    )
        except Exception:
            log.exception("lost commits could not be looked up")

    async def _find_lost(self, suspects: Sequence[_Batch]) -> dict[str, int]:
        """Returns the lost ids that were not reported, each with the time at which it was acknowledged.

        The loss may come during the look-up, after more ids were acknowledged or after some were found. So
        all are looked up again until no more are lost: a report has everything that one loss took.
        """
        lost = dict[str, int]()
        while True:
            batches = (*suspects, *self._acknowledged)  # some may be forgotten or acknowledged by now
            at_of = {id: at for at, requests in batches for ids in requests for id in ids}
            self._reported &= at_of.keys()
            known = self._reported | lost.keys()
            missing = await self._find_missing(id for id in at_of if id not in known)
            until = await self._until_available(self._find_purged_until)  # a purge records this first
            more = {id: at_of[id] for id in missing if at_of[id] > until}
            if not more:
                return lost
            lost |= more

    async def _find_missing(self, ids: Iterable[str]) -> set[str]:
        missing, left = set[str](), iter(ids)
        while some := list(islice(left, _IDS_PER_READ)):
            await self._until_available(partial(self._add_missing, some, missing))
        return missing

    async def _add_missing(self, ids: Sequence[str], missing: set[str]) -> None:
        missing |= await self._backend.find_missing(ids)

    async def _raise_alert(self, lost: Mapping[str, int]) -> None:
        """Reports lost ids, each with the time at which it was acknowledged."""
        first, last = format_time(min(lost.values())), format_time(max(lost.values()))
        number = "a notification" if len(lost) == 1 else f"{len(lost)} notifications"
        message = (
            f"the store has lost {number} that this process acknowledged between {first} and {last}:"
            " a failover or a restore took it back to an earlier state; some may have been sent before"
            " that, so look at the provider before you send one again"
        )
        log.error("%s", message)
        self._alerts.add(
            "NotificationsLost",
            message,
            lost=len(lost),
            firstAt=first,
            lastAt=last,
            notificationIds=sorted(lost)[:_MAX_REPORTED_IDS],
        )
        await self._until_available(self._alerts.flush)

    async def _run_actions(self) -> None:
        for action in self._actions:
            await action()

    async def _until_available(self, action: Callable[[], Awaitable[_T]]) -> _T:
        while True:
            try:
                return await action()
            except StoreRejected:
                raise
            except StoreError as error:
                log.info("lost commits cannot be looked up yet, the store is unavailable: %s", error)
                await self._clock.sleep_ms(_PAUSE_MS)


def _shortest_ms(retention: Retention) -> int:
    """Returns the age at which the first notifications are purged."""
    return min(retention.delivered_ms, retention.sent_ms, retention.others_ms)


def _new_ids(answer: Acceptance) -> tuple[str, ...]:
    """Returns the ids that the answer has acknowledged for the first time."""
    return tuple(id for id in answer.ids if id not in answer.duplicates)
