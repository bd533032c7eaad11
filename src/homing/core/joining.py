"""A caller's own connection, handed in so that its data and its notifications are promised together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from msgspec import Struct

Connection = TypeVar("Connection")


class CallersConnection(Struct, Generic[Connection], frozen=True):
    """A connection that belongs to one thread, and the way to use it there.

    Drivers that are not async bind a connection to the thread that opened it (sqlite3 and Django check
    it), and to use it elsewhere would block whoever runs there.
    """

    connection: Connection
    run: Callable[[Callable[[], Any]], Awaitable[Any]]
    """Calls a function on the connection's thread."""
