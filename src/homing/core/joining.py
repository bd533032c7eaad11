"""The caller's own database connection, so that its data and its notifications are committed together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from msgspec import Struct

Connection = TypeVar("Connection")


class CallersConnection(Struct, Generic[Connection], frozen=True):
    """A connection that belongs to one thread, with a function that runs code on that thread.

    Synchronous drivers bind a connection to the thread that opened it (sqlite3 and Django check this). Using
    the connection on another thread would also block that thread.
    """

    connection: Connection
    run: Callable[[Callable[[], Any]], Awaitable[Any]]
    """Runs a function on the connection's thread and returns its result."""
