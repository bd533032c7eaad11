"""What the transport knows of libcurl's sockets."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable
from contextlib import suppress

Asked = Callable[[float], list[tuple[int, int]]]
_HUNG_UP = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


class Connections:
    """The descriptors of pooled connections, by their local port: all that is told of one that is used again.

    An entry may be older than the connection. Then a good one may be called dead, which costs a new one.
    """

    def __init__(self) -> None:
        self._by_port: dict[int, tuple[int, Asked]] = {}
        self._swept_at = 1024

    def alive(self, local_port: int, made: list[int]) -> bool:
        """Whether the other side has left the connection open, as far as this machine has heard.

        `made` are the sockets that were made for this very transfer: a connection of them is new.
        """
        for descriptor in made:
            if _local_port(descriptor) == local_port:
                self._by_port[local_port] = (descriptor, _asking(descriptor))
                self._sweep()
                return True
        known = self._by_port.get(local_port)
        return known is None or not known[1](0)

    def _sweep(self) -> None:
        """Now and then, forgets connections that are closed."""
        if len(self._by_port) >= self._swept_at:
            self._by_port = {port: one for port, one in self._by_port.items() if _local_port(one[0]) == port}
            self._swept_at = max(1024, 2 * len(self._by_port))


def _asking(descriptor: int) -> Asked:
    """What answers with something once the connection is hung up: made once, asked before each request."""
    asked = select.poll()
    asked.register(descriptor, _HUNG_UP)
    return asked.poll


def _local_port(descriptor: int) -> int:
    with suppress(OSError):  # libcurl may have closed it already, for another that was quicker
        probe = socket.socket(fileno=os.dup(descriptor))
        with probe:
            port: int = probe.getsockname()[1]
            return port
    return 0


class Handed:
    """A socket on its way to libcurl, which takes a duplicate of its descriptor."""

    __slots__ = ("_socket",)

    def __init__(self, made: socket.socket) -> None:
        made.setblocking(False)
        self._socket = made

    def fileno(self) -> int:
        return self._socket.fileno()

    def __del__(self) -> None:
        self._socket.close()
