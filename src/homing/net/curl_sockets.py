"""Sockets for libcurl: opening, watching and health-checking them, and the timer for its deadlines."""

from __future__ import annotations

import asyncio
import os
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import pycurl  # type: ignore[import-untyped]

HangupPoll = Callable[[float], list[tuple[int, int]]]
"""Bound method of a `select.poll` object. Returns a non-empty list once the other side has hung up."""

_HUNG_UP = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


class PooledConnections:
    """The sockets of pooled connections by local port, which libcurl reports when it reuses a connection.

    An entry may belong to an earlier connection with the same port. In that case, a healthy connection may be
    taken for a dead one, which costs only the opening of a new connection.
    """

    def __init__(self) -> None:
        self._by_port: dict[int, tuple[int, HangupPoll]] = {}
        self._sweep_size = 1024

    def alive(self, local_port: int, made: list[int]) -> bool:
        """Returns False if the other side is known to have closed the connection with this local port.

        `made` has the sockets that were opened for this transfer. A connection over one of them is new.
        """
        for descriptor in made:
            if _local_port(descriptor) == local_port:
                self._by_port[local_port] = (descriptor, _hangup_poll(descriptor))
                self._sweep()
                return True
        known = self._by_port.get(local_port)
        return known is None or not known[1](0)

    def _sweep(self) -> None:
        """Removes closed connections each time the table has doubled in size since the last sweep."""
        if len(self._by_port) >= self._sweep_size:
            self._by_port = {port: one for port, one in self._by_port.items() if _local_port(one[0]) == port}
            self._sweep_size = max(1024, 2 * len(self._by_port))


def _hangup_poll(descriptor: int) -> HangupPoll:
    """Returns a function that checks for a hang-up. It is called before each request on the connection."""
    poller = select.poll()
    poller.register(descriptor, _HUNG_UP)
    return poller.poll


def _local_port(descriptor: int) -> int:
    with suppress(OSError):  # libcurl may have closed the descriptor, because another address connected first
        probe = socket.socket(fileno=os.dup(descriptor))
        with probe:
            port: int = probe.getsockname()[1]
            return port
    return 0


class SocketForCurl:
    """A new socket to pass to libcurl, which duplicates its descriptor; the original is then closed."""

    __slots__ = ("_socket",)

    def __init__(self, made: socket.socket) -> None:
        made.setblocking(False)
        self._socket = made

    def fileno(self) -> int:
        return self._socket.fileno()

    def __del__(self) -> None:
        self._socket.close()


OnSocketEvent = Callable[[int, int], None]
"""Receives a descriptor and what happened to it, as libcurl's CSELECT flags."""


_MAX_EVENTS_PER_POLL = 64
"""Maximum number of sockets handled per poll. Ended transfers are reported before the next poll."""

_IN, _OUT = pycurl.CSELECT_IN, pycurl.CSELECT_OUT


class SocketWatcher(Protocol):
    """Watches the sockets that libcurl asks for (`M_SOCKETFUNCTION`) and notifies it of their events."""

    def wanted(self, what: int, descriptor: int, multi: pycurl.CurlMulti, data: object) -> None: ...

    def close(self) -> None: ...


def create_socket_watcher(
    loop: asyncio.AbstractEventLoop, act: OnSocketEvent, acted: Callable[[], None]
) -> SocketWatcher:
    """Returns the fastest watcher that this system supports.

    `act` is called with each event, and `acted` after each group of events.
    """
    if hasattr(select, "epoll"):
        return EpollSocketWatcher(loop, act, acted)
    return LoopSocketWatcher(loop, act, acted)


class EpollSocketWatcher:
    """A separate epoll that the event loop watches, so that one wake-up serves many sockets.

    A socket is registered as one-shot: after an event it is silent until it is registered again, which
    happens as long as libcurl asks for it. Idle pooled sockets therefore need no removal, and one system call
    per request is enough. Closing a socket removes it.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, act: OnSocketEvent, acted: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._act = act
        self._acted = acted
        self._epoll = select.epoll()
        self._wanted: dict[int, int] = {}
        self._events = {
            pycurl.POLL_IN: select.EPOLLONESHOT | select.EPOLLIN,
            pycurl.POLL_OUT: select.EPOLLONESHOT | select.EPOLLOUT,
            pycurl.POLL_INOUT: select.EPOLLONESHOT | select.EPOLLIN | select.EPOLLOUT,
        }
        loop.add_reader(self._epoll.fileno(), self._on_event)

    def wanted(self, what: int, descriptor: int, multi: pycurl.CurlMulti, data: object) -> None:
        events = self._events.get(what)
        if events is None:  # POLL_REMOVE
            self._wanted.pop(descriptor, None)
            return
        self._wanted[descriptor] = events
        self._listen(descriptor, events)

    def close(self) -> None:
        if not self._loop.is_closed():
            self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()

    def _on_event(self) -> None:
        wanted, writable = self._wanted, select.EPOLLOUT
        for descriptor, events in self._epoll.poll(0, _MAX_EVENTS_PER_POLL):
            # Errors and hang-ups are reported as readable: the next read returns them to libcurl.
            flags = _OUT if events & writable else 0
            self._act(descriptor, flags | _IN if events & ~writable else flags)
            if descriptor in wanted:
                self._listen(descriptor, wanted[descriptor])
        self._acted()

    def _listen(self, descriptor: int, events: int) -> None:
        try:
            self._epoll.modify(descriptor, events)
        except FileNotFoundError:  # a new socket, or a reused descriptor number
            self._epoll.register(descriptor, events)


class LoopSocketWatcher:
    """Watches sockets with the event loop's own readers and writers, for systems without epoll."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, act: OnSocketEvent, acted: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._act = act
        self._acted = acted
        self._wanted: dict[int, int] = {}

    def wanted(self, what: int, descriptor: int, multi: pycurl.CurlMulti, data: object) -> None:
        if what == pycurl.POLL_REMOVE:
            self._forget(descriptor)
            return
        before = self._wanted.get(descriptor, 0)
        self._wanted[descriptor] = what
        reads, read = what & pycurl.POLL_IN, before & pycurl.POLL_IN
        writes, wrote = what & pycurl.POLL_OUT, before & pycurl.POLL_OUT
        if reads and not read:
            self._loop.add_reader(descriptor, self._on_event, descriptor, _IN)
        elif read and not reads:
            self._loop.remove_reader(descriptor)
        if writes and not wrote:
            self._loop.add_writer(descriptor, self._on_event, descriptor, _OUT)
        elif wrote and not writes:
            self._loop.remove_writer(descriptor)

    def close(self) -> None:
        for descriptor in list(self._wanted):
            self._forget(descriptor)

    def _on_event(self, descriptor: int, flags: int) -> None:
        self._act(descriptor, flags)
        self._acted()

    def _forget(self, descriptor: int) -> None:
        what = self._wanted.pop(descriptor, 0)
        if self._loop.is_closed():
            return
        if what & pycurl.POLL_IN:
            self._loop.remove_reader(descriptor)
        if what & pycurl.POLL_OUT:
            self._loop.remove_writer(descriptor)


class LazyTimer:
    """A timer for deadlines that are postponed far more often than they expire; postponing costs nothing.

    The underlying timer fires at the time that was set first, finds that it is too early, and is armed again.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._at: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = 0.0

    def set(self, at: float | None) -> None:
        """Sets the timer to `at`, in the event loop's time. None switches it off."""
        self._at = at
        if at is not None and (self._timer is None or at < self._wakes_at):
            self._sleep_until(at)

    def set_no_later_than(self, at: float) -> None:
        """Sets the timer to `at`, unless it is already set to an earlier time."""
        if self._at is None or at < self._at:
            self.set(at)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _sleep_until(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._wakes_at = at
        self._timer = self._loop.call_at(at, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._at is None:
            return
        if self._at > self._wakes_at:
            self._sleep_until(self._at)
            return
        self._at = None
        self._callback()
