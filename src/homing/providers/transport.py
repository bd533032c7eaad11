"""The HTTP client of all providers: libcurl's multi interface on the running event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pycurl  # type: ignore[import-untyped]

from homing.providers.guard import Door, Guard
from homing.providers.http import Answer, Exchange, Failure, OnAnswers, Request
from homing.providers.sockets import Connections
from homing.providers.transfer import Transfer, WireOptions, header_lines, unfit
from homing.providers.watching import Alarm, watch

log = logging.getLogger("homing.transport")

_LONGEST_MS = 24 * 3_600_000
_UnderWay = tuple[Transfer, Any, OnAnswers]
"""A transfer, its mark, and who is told what it brings."""
_UNWRITABLE = Failure(code="bad_request", error="the request cannot be written", written=False)
_SMUGGLING = Failure(
    code="bad_request", error="a header has characters that no header may have", written=False
)
_DROPPED = Failure(code="dropped", error="the transport was closed", written=False)


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
        future: asyncio.Future[Answer | Failure] = asyncio.get_running_loop().create_future()
        line = self._line()
        line.begin([(request, timeout_ms, future)], _resolve)
        try:
            return await future
        except asyncio.CancelledError:
            line.give_up((future,))
            raise

    def begin(self, exchanges: Sequence[Exchange], ended: OnAnswers) -> None:
        """The same for many; whoever asked is told of those that end together at once."""
        self._line().begin(exchanges, ended)

    def give_up(self, marks: Collection[Any]) -> None:
        self._line().give_up(marks)

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
        self._waiting: list[tuple[Exchange, OnAnswers]] = []
        """What is to be sent on its way in this turn of the loop."""
        self._under_way: dict[pycurl.Curl, _UnderWay] = {}
        self._over: list[tuple[OnAnswers, tuple[Any, Answer | Failure]]] = []
        """What has ended, and is told in a moment."""
        self._spare: list[Transfer] = []
        self._connections = Connections()

    def begin(self, exchanges: Sequence[Exchange], ended: OnAnswers) -> None:
        """Sends requests on their way, together with all others of this turn of the loop.

        One after the other, each step for all of them is faster than all steps for each: the code of a step
        stays in the processor's cache.
        """
        if not self._waiting:
            self._loop.call_soon(self._begin_all)
        self._waiting += [(exchange, ended) for exchange in exchanges]

    def _begin_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        door, over = self._options.door, self._over
        shortest_ms = _LONGEST_MS
        for (request, timeout_ms, mark), ended in waiting:
            failure = unfit(request, door)
            headers = header_lines(request.headers, len(request.body))
            if failure is not None or headers is None:
                over.append((ended, (mark, failure or _SMUGGLING)))
                continue
            if timeout_ms > _LONGEST_MS:
                timeout_ms = _LONGEST_MS
            transfer = self._spare.pop() if self._spare else Transfer(self._options, self._connections)
            try:
                transfer.prepare(request, headers, timeout_ms)
            except (pycurl.error, TypeError, ValueError):  # what `unfit` let pass and libcurl does not
                transfer.close()
                over.append((ended, (mark, _UNWRITABLE)))
                continue
            self._under_way[transfer.curl] = (transfer, mark, ended)
            self._multi.add_handle(transfer.curl)
            if timeout_ms < shortest_ms:
                shortest_ms = timeout_ms
        if self._under_way:
            self._limit.set_at_latest(self._loop.time() + shortest_ms / 1000)
        self._tell()

    def give_up(self, marks: Collection[Any]) -> None:
        """Nobody wants to hear of them any more: their connections are given up, unless they have ended."""
        self._waiting = [one for one in self._waiting if one[0][2] not in marks]
        for transfer, mark, _ in list(self._under_way.values()):
            if mark in marks:
                del self._under_way[transfer.curl]
                self._multi.remove_handle(transfer.curl)
                transfer.close()

    def close(self) -> None:
        self._timer.close()
        self._limit.close()
        if self._soon is not None:
            self._soon.cancel()
        self._over += [(ended, (mark, _DROPPED)) for (_, _, mark), ended in self._waiting]
        self._waiting.clear()
        for transfer, mark, ended in self._under_way.values():
            self._multi.remove_handle(transfer.curl)
            self._over.append((ended, (mark, transfer.result(pycurl.E_ABORTED_BY_CALLBACK))))
            transfer.close()
        self._under_way.clear()
        if not self._loop.is_closed():
            self._tell()
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
        for transfer, *_ in list(self._under_way.values()):
            left_ms = transfer.left_ms()
            if left_ms <= 0:
                self._end(transfer.curl, pycurl.E_OPERATION_TIMEDOUT)
            else:
                self._limit.set_at_latest(self._loop.time() + left_ms / 1000)
        self._tell()

    def _act(self, descriptor: int, events: int) -> None:
        try:
            self._multi.socket_action(descriptor, events)
        except pycurl.error:
            return  # one transfer's trouble is reported with it

    def _hand_out(self) -> None:
        """Tells of transfers that have ended."""
        while True:
            queued, ended, failed = self._multi.info_read()
            for curl in ended:
                self._end(curl, pycurl.E_OK)
            for curl, errno, _ in failed:
                self._end(curl, errno)
            if not queued:
                break
        self._tell()

    def _end(self, curl: pycurl.Curl, errno: int) -> None:
        self._multi.remove_handle(curl)
        if errno and self._under_way[curl][0].may_go_again():
            self._multi.add_handle(curl)
            return
        transfer, mark, ended = self._under_way.pop(curl)
        self._over.append((ended, (mark, transfer.result(errno))))
        if len(self._spare) < self._most_spare and transfer.rests():
            self._spare.append(transfer)
        else:
            transfer.close()

    def _tell(self) -> None:
        if not self._over:
            return
        over, self._over = self._over, []
        told: dict[OnAnswers, list[tuple[Any, Answer | Failure]]] = {}
        for ended, result in over:
            told.setdefault(ended, []).append(result)
        for ended, results in told.items():
            try:
                ended(results)
            except Exception:
                log.exception("what %d requests brought could not be taken note of", len(results))


def _resolve(results: list[tuple[asyncio.Future[Answer | Failure], Answer | Failure]]) -> None:
    """For who waits for each."""
    for future, result in results:
        if not future.done():
            future.set_result(result)
