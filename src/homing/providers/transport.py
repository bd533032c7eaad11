"""The HTTP client of all providers: libcurl's multi interface on the running event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress

import pycurl  # type: ignore[import-untyped]

from homing.providers.guard import Door, Guard
from homing.providers.http import Answer, Failure, Request
from homing.providers.sockets import Connections
from homing.providers.transfer import Transfer, WireOptions, unfit
from homing.providers.watching import Alarm, watch

_LONGEST_MS = 24 * 3_600_000


class CurlTransport:
    """Carries requests over pooled connections, HTTP/2 where the server speaks it over TLS.

    It begins in an event loop with the first request there, and has its own connections in each.
    """

    def __init__(
        self,
        *,
        connect_timeout_ms: int = 5_000,
        ca_file: str = "",
        max_connections: int = 512,
        max_host_connections: int = 128,
        guard: Guard | None = None,
        resolve: Mapping[str, str] | None = None,
        user_agent: str = "homing",
    ) -> None:
        self._options = WireOptions(
            connect_timeout_ms=connect_timeout_ms,
            ca_file=ca_file,
            user_agent=user_agent,
            door=Door(guard or Guard()),
            resolve={} if resolve is None else resolve,
        )
        self._max_connections = max_connections
        self._max_host_connections = max_host_connections
        self._lines: dict[asyncio.AbstractEventLoop, _Line] = {}

    async def send(self, request: Request, *, timeout_ms: int) -> Answer | Failure:
        """Never raises for the network; cancelling ends the transfer."""
        failure = unfit(request, self._options.door)
        if failure is not None:
            return failure
        return await self._line().carry(request, min(timeout_ms, _LONGEST_MS))

    async def close(self) -> None:
        """Ends what is under way and closes all connections of this loop, and of those that are closed."""
        here = asyncio.get_running_loop()
        for loop in [loop for loop in self._lines if loop is here or loop.is_closed()]:
            self._lines.pop(loop).close()

    def _line(self) -> _Line:
        loop = asyncio.get_running_loop()
        line = self._lines.get(loop)
        if line is None:
            for gone in [other for other in self._lines if other.is_closed()]:
                self._lines.pop(gone).close()
            line = _Line(loop, self._options, self._max_connections, self._max_host_connections)
            self._lines[loop] = line
        return line


class _Line:
    """One multi handle in one event loop. The loop watches its sockets and its timer."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, options: WireOptions, connections: int, per_host: int
    ) -> None:
        self._loop = loop
        self._options = options
        self._most_spare = connections
        self._watch = watch(loop, self._act, self._hand_out)
        self._timer = Alarm(loop, self._on_timer)
        self._soon: asyncio.Handle | None = None
        self._limit = Alarm(loop, self._end_overdue)
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_PIPELINING, pycurl.PIPE_MULTIPLEX)
        self._multi.setopt(pycurl.M_MAX_TOTAL_CONNECTIONS, connections)
        self._multi.setopt(pycurl.M_MAX_HOST_CONNECTIONS, per_host)
        self._multi.setopt(pycurl.M_MAXCONNECTS, connections)
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._watch.wanted)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._set_timer)
        self._under_way: dict[pycurl.Curl, tuple[Transfer, asyncio.Future[Answer | Failure]]] = {}
        self._spare: list[Transfer] = []
        self._connections = Connections()

    async def carry(self, request: Request, timeout_ms: int) -> Answer | Failure:
        transfer = self._spare.pop() if self._spare else Transfer(self._options, self._connections)
        try:
            transfer.prepare(request, timeout_ms)
        except (pycurl.error, TypeError, ValueError):  # what `unfit` let pass and libcurl does not
            transfer.close()
            return Failure(code="bad_request", error="the request cannot be written", written=False)
        future: asyncio.Future[Answer | Failure] = self._loop.create_future()
        self._under_way[transfer.curl] = (transfer, future)
        self._multi.add_handle(transfer.curl)
        self._limit.set_at_latest(self._loop.time() + timeout_ms / 1000)
        try:
            return await future
        except asyncio.CancelledError:
            entry = self._under_way.get(transfer.curl)
            if entry is not None and entry[1] is future:  # its connection is given up
                del self._under_way[transfer.curl]
                self._multi.remove_handle(transfer.curl)
                transfer.close()
            raise

    def close(self) -> None:
        self._timer.close()
        self._limit.close()
        if self._soon is not None:
            self._soon.cancel()
        for transfer, future in self._under_way.values():
            self._multi.remove_handle(transfer.curl)
            result = transfer.result(pycurl.E_ABORTED_BY_CALLBACK)
            transfer.close()
            if not future.done() and not self._loop.is_closed():
                future.set_result(result)
        self._under_way.clear()
        for transfer in self._spare:
            transfer.close()
        self._spare.clear()
        self._watch.close()
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, None)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, None)
        self._multi.close()

    def _set_timer(self, timeout_ms: int) -> None:
        """libcurl says when it wants to be called if nothing happens before. Not from in here."""
        if timeout_ms == 0:
            if self._soon is None:
                self._soon = self._loop.call_soon(self._on_soon)
        else:
            self._timer.set(None if timeout_ms < 0 else self._loop.time() + timeout_ms / 1000)

    def _on_soon(self) -> None:
        self._soon = None
        self._on_timer()

    def _on_timer(self) -> None:
        self._act(pycurl.SOCKET_TIMEOUT, 0)
        self._hand_out()

    def _end_overdue(self) -> None:
        """libcurl lets what waits for a connection wait on beyond its time."""
        for transfer, _ in list(self._under_way.values()):
            left_ms = transfer.left_ms()
            if left_ms <= 0:
                self._end(transfer.curl, pycurl.E_OPERATION_TIMEDOUT)
            else:
                self._limit.set_at_latest(self._loop.time() + left_ms / 1000)

    def _act(self, descriptor: int, events: int) -> None:
        with suppress(pycurl.error):  # one transfer's trouble is reported with it
            self._multi.socket_action(descriptor, events)

    def _hand_out(self) -> None:
        """Answers those who wait for transfers that have ended."""
        while True:
            queued, ended, failed = self._multi.info_read()
            for curl in ended:
                self._end(curl, pycurl.E_OK)
            for curl, errno, _ in failed:
                self._end(curl, errno)
            if not queued:
                return

    def _end(self, curl: pycurl.Curl, errno: int) -> None:
        self._multi.remove_handle(curl)
        transfer, future = self._under_way.pop(curl)
        if errno and transfer.may_go_again():
            self._under_way[curl] = (transfer, future)
            self._multi.add_handle(curl)
            return
        result = transfer.result(errno)
        if len(self._spare) < self._most_spare and transfer.rests():
            self._spare.append(transfer)
        else:
            transfer.close()
        if not future.done():
            future.set_result(result)
