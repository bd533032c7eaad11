"""How the event loop hears of libcurl's sockets, and of the times that it is waiting for."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from typing import Protocol

import pycurl  # type: ignore[import-untyped]

Act = Callable[[int, int], None]
"""(descriptor, what happened to it, in libcurl's terms)"""

_AT_ONCE = 64
"""Sockets that are heard of in one turn of the loop: between two turns, what was answered goes on its way."""
_IN, _OUT = pycurl.CSELECT_IN, pycurl.CSELECT_OUT


class Watch(Protocol):
    """Hears which sockets libcurl wants to hear of (`M_SOCKETFUNCTION`), and tells it."""

    def wanted(self, what: int, descriptor: int, multi: pycurl.CurlMulti, data: object) -> None: ...

    def close(self) -> None: ...


def watch(loop: asyncio.AbstractEventLoop, act: Act, acted: Callable[[], None]) -> Watch:
    """The best that this system has. `acted` is called after all that happened at once."""
    if hasattr(select, "epoll"):
        return EpollWatch(loop, act, acted)
    return LoopWatch(loop, act, acted)


class EpollWatch:
    """An epoll of its own, which the loop watches: it hears of many sockets at once.

    A socket that has spoken is silent until libcurl wants to hear of it again (one shot). So those that rest
    in the pool need not be taken out, and one system call per request is enough; who closes one takes it out.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, act: Act, acted: Callable[[], None]) -> None:
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
        loop.add_reader(self._epoll.fileno(), self._heard)

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

    def _heard(self) -> None:
        wanted, writable = self._wanted, select.EPOLLOUT
        for descriptor, events in self._epoll.poll(0, _AT_ONCE):
            # What broke is heard of by who reads or writes.
            told = _OUT if events & writable else 0
            self._act(descriptor, told | _IN if events & ~writable else told)
            if descriptor in wanted:
                self._listen(descriptor, wanted[descriptor])
        self._acted()

    def _listen(self, descriptor: int, events: int) -> None:
        try:
            self._epoll.modify(descriptor, events)
        except FileNotFoundError:  # new, or its number was another's
            self._epoll.register(descriptor, events)


class LoopWatch:
    """The loop's own readers and writers: for systems without epoll."""

    def __init__(self, loop: asyncio.AbstractEventLoop, act: Act, acted: Callable[[], None]) -> None:
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
            self._loop.add_reader(descriptor, self._heard, descriptor, _IN)
        elif read and not reads:
            self._loop.remove_reader(descriptor)
        if writes and not wrote:
            self._loop.add_writer(descriptor, self._heard, descriptor, _OUT)
        elif wrote and not writes:
            self._loop.remove_writer(descriptor)

    def close(self) -> None:
        for descriptor in list(self._wanted):
            self._forget(descriptor)

    def _heard(self, descriptor: int, told: int) -> None:
        self._act(descriptor, told)
        self._acted()

    def _forget(self, descriptor: int) -> None:
        what = self._wanted.pop(descriptor, 0)
        if self._loop.is_closed():
            return
        if what & pycurl.POLL_IN:
            self._loop.remove_reader(descriptor)
        if what & pycurl.POLL_OUT:
            self._loop.remove_writer(descriptor)


class Alarm:
    """A timer that is set far more often than it rings: to put it off costs nothing.

    It goes off at the time it was first set for, sees that it is too early, and sleeps on.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._at: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = 0.0

    def set(self, at: float | None) -> None:
        """Rings then, by the loop's clock; None: not at all."""
        self._at = at
        if at is not None and (self._timer is None or at < self._wakes_at):
            self._sleep_until(at)

    def set_at_latest(self, at: float) -> None:
        """Rings then, or before if it is set so."""
        if self._at is None or at < self._at:
            self.set(at)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _sleep_until(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._wakes_at = at
        self._timer = self._loop.call_at(at, self._woke)

    def _woke(self) -> None:
        self._timer = None
        if self._at is None:
            return
        if self._at > self._wakes_at:
            self._sleep_until(self._at)
            return
        self._at = None
        self._ring()
