"""The two threads of the store. The writer commits for many callers at once; the reader never waits for it.

An answer leaves only after the commit that it stands on, and all answers of one commit leave together. A
caller that was cancelled has no effect on either thread: its call is finished like the others.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

from homing.core.errors import StoreError
from homing.stores.sqlite.connection import translated

R = TypeVar("R")
Action = Callable[[sqlite3.Cursor], R]
"""What a call does in its transaction."""
Together = Callable[[sqlite3.Cursor, list[Any]], Sequence[Any]]
"""Does the same for the parts of several callers; one result for each."""

_GROUP = 256
"""Calls in one commit at most: bounds how long the first of them waits for the last."""


class Again(Exception):
    """What a call remembered is no longer so. It has forgotten it by now: undo the call and make it again."""


class _TransactionGoneError(Exception):
    """SQLite has rolled back the whole group by itself, as it does when the disk is full."""


class Call(Generic[R]):
    """One caller's wish and the future that it waits for."""

    __slots__ = ("action", "error", "future", "loop", "part", "result", "single", "together")

    def __init__(
        self,
        action: Action[R],
        together: Together | None = None,
        part: object = None,
        single: bool = False,
    ) -> None:
        self.action = action
        self.single = single
        """It is one statement, and needs no transaction to see one state."""
        self.together = together
        """Set where neighbours of the same kind can be done in one go, each with its `part`."""
        self.part = part
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[R] = self.loop.create_future()
        self.result: R | None = None
        self.error: Exception | None = None


class _Thread:
    """A thread that works on calls until it is told to stop."""

    def __init__(self, name: str, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._cursor = connection.cursor()
        self._path = path
        self._calls: queue.SimpleQueue[Call[Any] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._stopped = False
        # A daemon, so that a program that ends without closing the store does end.
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    async def do(self, call: Call[R]) -> R:
        with self._lock:  # nothing may be queued behind the order to stop: it would never be answered
            if self._stopped:
                raise StoreError(f"{self._path} is closed; open the store first.")
            self._calls.put(call)
        return await call.future

    def stop(self) -> None:
        """Finishes what is queued and closes the connection. Blocks until then."""
        with self._lock:
            if not self._stopped:
                self._stopped = True
                self._calls.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            calls = [call]
            try:
                while len(calls) < _GROUP:
                    another = self._calls.get_nowait()
                    if another is None:
                        self._calls.put(None)
                        break
                    calls.append(another)
            except queue.Empty:
                pass
            self._perform(calls)
            _answer(calls)
        self._cursor.close()
        self._connection.close()

    def _perform(self, calls: Sequence[Call[Any]]) -> None:
        raise NotImplementedError

    def _alone(self, call: Call[Any], begin: str) -> None:
        """One call in a transaction of its own."""
        call.result = call.error = None
        try:
            if call.single:
                call.result = call.action(self._cursor)
                return
            self._cursor.execute(begin)
            call.result = call.action(self._cursor)
            self._cursor.execute("COMMIT")
        except Again:
            self._roll_back()
            self._alone(call, begin)
        except Exception as error:
            call.error = translated(error, self._path)
            self._roll_back()

    def _roll_back(self) -> None:
        # SQLite may have rolled back by itself already (a full disk does that).
        if self._connection.in_transaction:
            with suppress(sqlite3.Error):
                self._cursor.execute("ROLLBACK")


class Reader(_Thread):
    """Each call sees one state of the store, the last committed one."""

    def _perform(self, calls: Sequence[Call[Any]]) -> None:
        for call in calls:
            self._alone(call, "BEGIN")


class Writer(_Thread):
    """Group commit: whatever is waiting when the last commit ends goes into the next one."""

    def _perform(self, calls: Sequence[Call[Any]]) -> None:
        if len(calls) == 1 or not self._grouped(calls):
            for call in calls:
                self._alone(call, "BEGIN IMMEDIATE")

    def _grouped(self, calls: Sequence[Call[Any]]) -> bool:
        """All calls in one transaction; False: it broke, and nothing of it remains."""
        try:
            self._cursor.execute("BEGIN IMMEDIATE")
            for neighbours in _neighbours(calls):
                if not self._in_one_go(neighbours):
                    for call in neighbours:
                        self._on_its_own(call)
            self._cursor.execute("COMMIT")
        except _TransactionGoneError:
            return False
        except Exception as error:
            self._roll_back()
            for call in calls:
                call.error = translated(error, self._path)
        return True

    def _in_one_go(self, calls: Sequence[Call[Any]]) -> bool:
        """Neighbours of one kind as one; False: it failed, each has to try on its own."""
        together = calls[0].together
        if together is None or len(calls) == 1:
            return False
        self._cursor.execute("SAVEPOINT call")
        try:
            results = together(self._cursor, [call.part for call in calls])
        except Exception:
            self._undo_call()
            return False
        self._cursor.execute("RELEASE call")
        for call, result in zip(calls, results, strict=True):
            call.result = result
        return True

    def _on_its_own(self, call: Call[Any]) -> None:
        """One call inside the group: if it fails, it alone is undone."""
        self._cursor.execute("SAVEPOINT call")
        try:
            call.result = call.action(self._cursor)
        except Again:
            self._undo_call()
            self._on_its_own(call)
        except Exception as error:
            call.error = translated(error, self._path)
            self._undo_call()
        else:
            self._cursor.execute("RELEASE call")

    def _undo_call(self) -> None:
        if not self._connection.in_transaction:
            raise _TransactionGoneError
        self._cursor.execute("ROLLBACK TO call")
        self._cursor.execute("RELEASE call")


def _neighbours(calls: Sequence[Call[Any]]) -> list[list[Call[Any]]]:
    """Calls in their order, those that can be done together side by side."""
    groups: list[list[Call[Any]]] = []
    for call in calls:
        if call.together is not None and groups and groups[-1][0].together == call.together:
            groups[-1].append(call)
        else:
            groups.append([call])
    return groups


def _answer(calls: Sequence[Call[Any]]) -> None:
    """Resolves the futures, with one wake-up for each event loop."""
    loops: dict[asyncio.AbstractEventLoop, list[Call[Any]]] = {}
    for call in calls:
        loops.setdefault(call.loop, []).append(call)
    for loop, answered in loops.items():
        with suppress(RuntimeError):  # the loop is closed: nobody is left to hear it
            loop.call_soon_threadsafe(_resolve, answered)


def _resolve(calls: Sequence[Call[Any]]) -> None:
    for call in calls:
        if call.future.done():
            continue
        if call.error is not None:
            call.future.set_exception(call.error)
        else:
            call.future.set_result(call.result)
