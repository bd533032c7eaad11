"""The writer and reader threads of the store.

The writer commits the calls of many callers in one transaction. The reader never waits for the writer. A call
returns only after its commit, and all calls of one commit return together. If a caller is cancelled, its call
is still completed.
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

from homing.core.errors import StoreError, StoreUnavailable
from homing.stores.sqlite.connection import translate_error
from homing.stores.sqlite.open_file import FileProblem, OpenFile

R = TypeVar("R")

Action = Callable[[sqlite3.Cursor], R]
"""The work of one call, done inside a transaction."""

BatchAction = Callable[[sqlite3.Cursor, list[Any]], Sequence[Any]]
"""Does the work of several calls of one kind at once.

Receives their `part`s and returns one result for each.
"""


_MAX_GROUPED_CALLS = 256
"""Maximum number of calls per commit. It bounds how long the first call waits for the last."""


class RetryTransaction(Exception):
    """Raised by a call whose cached rows are out of date.

    The call has removed these rows from the cache. Its changes must be undone, and it must run again.
    """


class _TransactionLostError(Exception):
    """Raised if SQLite itself has rolled back the whole group, as it does when the disk is full."""


class ThreadCall(Generic[R]):
    """A queued call and the future that its caller awaits."""

    __slots__ = ("action", "error", "future", "loop", "part", "result", "single", "together")

    def __init__(
        self,
        action: Action[R],
        together: BatchAction | None = None,
        part: object = None,
        single: bool = False,
    ) -> None:
        self.action = action
        self.single = single
        """True if the action is one statement, which needs no transaction to see one snapshot."""
        self.together = together
        """Does the work of several adjacent calls of this kind at once. None if that is not possible."""
        self.part = part
        """This call's argument for `together`."""
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[R] = self.loop.create_future()
        self.result: R | None = None
        self.error: Exception | None = None


class _Thread:
    """A thread that processes queued calls until it is stopped."""

    def __init__(
        self,
        name: str,
        connect: Callable[[], sqlite3.Connection],
        path: Path,
        on_open: Callable[[str], None] = lambda identity: None,
    ) -> None:
        """Calls `on_open` with the identity of the file each time the file was opened.

        Raises `StoreError` if `connect` does.
        """
        self._connect = connect
        self._path = path
        self._on_open = on_open
        self._problem: FileProblem | None = None
        """What was wrong with the file after the last call. None if it was in its place."""
        self._open_file()
        self._calls: queue.SimpleQueue[ThreadCall[Any] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._stopped = False
        # A daemon thread does not keep a program alive that exits without closing the store.
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    async def do(self, call: ThreadCall[R]) -> R:
        """Queues a call and returns its result. Raises `StoreError` if the thread is stopped."""
        with self._lock:  # a call queued after the stop marker would never return
            if self._stopped:
                raise StoreError(f"{self._path} is closed; open the store first.")
            self._calls.put(call)
        return await call.future

    def stop(self) -> None:
        """Blocks until all queued calls are done and the connection is closed."""
        with self._lock:
            if not self._stopped:
                self._stopped = True
                self._calls.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            calls = [call]
            try:
                while len(calls) < _MAX_GROUPED_CALLS:
                    another = self._calls.get_nowait()
                    if another is None:
                        self._calls.put(None)
                        break
                    calls.append(another)
            except queue.Empty:
                pass
            self._perform_checked(calls)
            self._return(calls)
        self._cursor.close()
        self._connection.close()

    @staticmethod
    def _return(calls: Sequence[ThreadCall[Any]]) -> None:
        _return_results(calls)

    def _perform_checked(self, calls: Sequence[ThreadCall[Any]]) -> None:
        """Performs the calls, and performs them again if they went to a file that is no longer in its place.

        If there is no file in its place, or one that cannot be opened, all calls fail.
        """
        for _ in range(2):
            if self._problem is not None and (error := self._recover()) is not None:
                _fail(calls, error)
                return
            self._perform(calls)
            self._problem = self._file.find_problem()
            if self._problem is None:
                return
            for call in calls:
                call.result = call.error = None
        _fail(calls, self._error())

    def _recover(self) -> Exception | None:
        """Opens the file that has taken the place of the open one. Returns an error if that is not possible.

        What this process has committed to the old file is lost, as it is for every other process.
        """
        self._problem = self._file.find_problem()
        if self._problem is None:
            return None  # the file was put back
        if self._problem is not FileProblem.REPLACED or not self._file.may_open_again():
            return self._error()
        old = self._connection
        try:
            self._open_file()
        except Exception as error:
            return error
        old.close()
        self._problem = None
        return None

    def _error(self) -> StoreUnavailable:
        assert self._problem is not None, "checked by the caller"
        return StoreUnavailable(self._file.describe(self._problem))

    def _open_file(self) -> None:
        self._connection = self._connect()
        self._cursor = self._connection.cursor()
        self._file = OpenFile(self._path, self._connection)
        self._on_open(self._file.identity)

    def _perform(self, calls: Sequence[ThreadCall[Any]]) -> None:
        raise NotImplementedError

    def _run_alone(self, call: ThreadCall[Any], begin: str) -> None:
        """Runs one call in its own transaction."""
        call.result = call.error = None
        try:
            if call.single:
                call.result = call.action(self._cursor)
                return
            self._cursor.execute(begin)
            call.result = call.action(self._cursor)
            self._cursor.execute("COMMIT")
        except RetryTransaction:
            self._roll_back()
            self._run_alone(call, begin)
        except Exception as error:
            call.error = self._translate(error)
            self._roll_back()

    def _translate(self, error: Exception) -> Exception:
        """Returns the store error, which keeps the original one as its cause."""
        translated = translate_error(error, self._path)
        if translated is not error:
            translated.__cause__ = error
        return translated

    def _roll_back(self) -> None:
        # SQLite may have rolled back already, for example because the disk is full.
        if self._connection.in_transaction:
            with suppress(sqlite3.Error):
                self._cursor.execute("ROLLBACK")


class ReaderThread(_Thread):
    """Runs each call on a snapshot of the last committed state."""

    def _perform(self, calls: Sequence[ThreadCall[Any]]) -> None:
        for call in calls:
            self._run_alone(call, "BEGIN")


class WriterThread(_Thread):
    """Commits calls in groups: the calls that wait when a commit ends share the next transaction."""

    def _perform(self, calls: Sequence[ThreadCall[Any]]) -> None:
        if len(calls) == 1 or not self._run_group(calls):
            for call in calls:
                self._run_alone(call, "BEGIN IMMEDIATE")

    def _run_group(self, calls: Sequence[ThreadCall[Any]]) -> bool:
        """Runs all calls in one transaction. Returns False if SQLite has rolled all of it back."""
        try:
            self._cursor.execute("BEGIN IMMEDIATE")
            for adjacent in _adjacent_calls(calls):
                if not self._run_together(adjacent):
                    for call in adjacent:
                        self._run_in_savepoint(call)
            self._cursor.execute("COMMIT")
        except _TransactionLostError:
            return False
        except Exception as error:
            self._roll_back()
            for call in calls:
                call.error = self._translate(error)
        return True

    def _run_together(self, calls: Sequence[ThreadCall[Any]]) -> bool:
        """Runs calls of one kind at once.

        Returns False, with nothing changed, if each must be run separately.
        """
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

    def _run_in_savepoint(self, call: ThreadCall[Any]) -> None:
        """Runs one call of the group. If it fails, only this call is undone."""
        self._cursor.execute("SAVEPOINT call")
        try:
            call.result = call.action(self._cursor)
        except RetryTransaction:
            self._undo_call()
            self._run_in_savepoint(call)
        except Exception as error:
            call.error = self._translate(error)
            self._undo_call()
        else:
            self._cursor.execute("RELEASE call")

    def _undo_call(self) -> None:
        if not self._connection.in_transaction:
            raise _TransactionLostError
        self._cursor.execute("ROLLBACK TO call")
        self._cursor.execute("RELEASE call")


def _fail(calls: Sequence[ThreadCall[Any]], error: Exception) -> None:
    for call in calls:
        call.error = error


def _adjacent_calls(calls: Sequence[ThreadCall[Any]]) -> list[list[ThreadCall[Any]]]:
    """Splits the calls, in their order, into groups that can be run together."""
    groups: list[list[ThreadCall[Any]]] = []
    for call in calls:
        if call.together is not None and groups and groups[-1][0].together == call.together:
            groups[-1].append(call)
        else:
            groups.append([call])
    return groups


def _return_results(calls: Sequence[ThreadCall[Any]]) -> None:
    """Resolves the futures, with one wake-up per event loop."""
    loops: dict[asyncio.AbstractEventLoop, list[ThreadCall[Any]]] = {}
    for call in calls:
        loops.setdefault(call.loop, []).append(call)
    for loop, finished in loops.items():
        with suppress(RuntimeError):  # the loop is closed, so no caller waits any more
            loop.call_soon_threadsafe(_resolve, finished)


def _resolve(calls: Sequence[ThreadCall[Any]]) -> None:
    for call in calls:
        if call.future.done():
            continue
        if call.error is not None:
            call.future.set_exception(call.error)
        else:
            call.future.set_result(call.result)
