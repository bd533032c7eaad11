"""Health checks for libcurl's pooled connections, and the sockets that are opened for libcurl."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable
from contextlib import suppress

Asked = Callable[[float], list[tuple[int, int]]]
"""A bound `poll`: returns a non-empty list once the other side has closed the connection."""
_HUNG_UP = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


class Connections:
    """The sockets of pooled connections by local port, the only property libcurl reports of a reused one.

    An entry may belong to an earlier connection with the same port. Then a healthy connection may be taken
    for a dead one, which costs no more than opening a new one.
    """

    def __init__(self) -> None:
        self._by_port: dict[int, tuple[int, Asked]] = {}
        self._sweep_size = 1024

    def alive(self, local_port: int, made: list[int]) -> bool:
        """Returns False if the other side is known to have closed the connection.

        `made` has the sockets that were opened for this transfer; a connection over one of them is new.
        """
        for descriptor in made:
            if _local_port(descriptor) == local_port:
                self._by_port[local_port] = (descriptor, _hangup_poll(descriptor))
                self._sweep()
                return True
        known = self._by_port.get(local_port)
        return known is None or not known[1](0)

    def _sweep(self) -> None:
        """Forgets closed connections whenever the table has doubled in size."""
        if len(self._by_port) >= self._sweep_size:
            self._by_port = {port: one for port, one in self._by_port.items() if _local_port(one[0]) == port}
            self._sweep_size = max(1024, 2 * len(self._by_port))


def _hangup_poll(descriptor: int) -> Asked:
    """Returns a poll for a hang-up. It is created once per connection and called before each request."""
    poller = select.poll()
    poller.register(descriptor, _HUNG_UP)
    return poller.poll


def _local_port(descriptor: int) -> int:
    with suppress(OSError):  # libcurl may have closed it already, because another address connected first
        probe = socket.socket(fileno=os.dup(descriptor))
        with probe:
            port: int = probe.getsockname()[1]
            return port
    return 0


class Handed:
    """A new socket to pass to libcurl, which duplicates its descriptor; the original is then closed."""

    __slots__ = ("_socket",)

    def __init__(self, made: socket.socket) -> None:
        made.setblocking(False)
        self._socket = made

    def fileno(self) -> int:
        return self._socket.fileno()

    def __del__(self) -> None:
        self._socket.close()
