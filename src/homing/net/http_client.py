"""The HTTP client that all providers share: libcurl's multi interface on the running event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pycurl  # type: ignore[import-untyped]

from homing.net.curl_sockets import LazyTimer, PooledConnections, create_socket_watcher
from homing.net.curl_transfer import Transfer, TransferOptions, build_header_lines, find_request_problem
from homing.net.http_messages import HttpRequest, HttpResponse, OnResponses, TimedRequest, TransportFailure
from homing.net.settings import HttpSettings
from homing.net.ssrf_guard import AddressGuard, CachedAddressGuard

log = logging.getLogger("homing.transport")


_DEFAULTS = HttpSettings()

_MAX_TIMEOUT_MS = 24 * 3_600_000

_InFlight = tuple[Transfer, Any, OnResponses]
"""A transfer, the caller's handle for it, and the callback for its result."""

_UNWRITABLE = TransportFailure(code="bad_request", error="libcurl cannot send this request", written=False)

_BAD_HEADER = TransportFailure(
    code="bad_request", error="a header contains a character that is not allowed in headers", written=False
)

_DROPPED = TransportFailure(code="dropped", error="the transport was closed", written=False)


class CurlTransport:
    """Sends requests over pooled connections, with HTTP/2 if the server supports it over TLS.

    Each event loop that sends requests has its own connections.
    """

    def __init__(
        self,
        *,
        connect_timeout_ms: int = _DEFAULTS.connect_timeout_ms,
        ca_file: str = "",
        max_connections: int = _DEFAULTS.max_connections,
        max_host_connections: int = _DEFAULTS.max_host_connections,
        guard: AddressGuard | None = None,
        resolve: Mapping[str, str] | None = None,
        user_agent: str = "homing",
    ) -> None:
        self._options = TransferOptions(
            connect_timeout_ms=connect_timeout_ms,
            ca_file=ca_file,
            user_agent=user_agent,
            guard=CachedAddressGuard(guard or AddressGuard()),
            resolve={} if resolve is None else resolve,
        )
        self._max_connections = max_connections
        self._max_host_connections = max_host_connections
        self._by_loop: dict[asyncio.AbstractEventLoop, _LoopTransport] = {}

    async def send(self, request: HttpRequest, *, timeout_ms: int) -> HttpResponse | TransportFailure:
        """Sends one request and returns its result. Cancelling the call aborts the transfer."""
        future: asyncio.Future[HttpResponse | TransportFailure] = asyncio.get_running_loop().create_future()
        loop_transport = self._of_running_loop()
        loop_transport.begin([(request, timeout_ms, future)], _resolve)
        try:
            return await future
        except asyncio.CancelledError:
            loop_transport.give_up((future,))
            raise

    def begin(self, exchanges: Sequence[TimedRequest], ended: OnResponses) -> None:
        """Starts many requests. Results that arrive together are reported in one call of `ended`."""
        self._of_running_loop().begin(exchanges, ended)

    def give_up(self, marks: Collection[Any]) -> None:
        self._of_running_loop().give_up(marks)

    async def close(self) -> None:
        """Aborts all transfers of the running loop and closes its connections, and those of closed loops."""
        here = asyncio.get_running_loop()
        for loop in [loop for loop in self._by_loop if loop is here or loop.is_closed()]:
            self._by_loop.pop(loop).close()

    def _of_running_loop(self) -> _LoopTransport:
        loop = asyncio.get_running_loop()
        loop_transport = self._by_loop.get(loop)
        if loop_transport is None:
            for gone in [other for other in self._by_loop if other.is_closed()]:
                self._by_loop.pop(gone).close()
            loop_transport = _LoopTransport(
                loop, self._options, self._max_connections, self._max_host_connections
            )
            self._by_loop[loop] = loop_transport
        return loop_transport


class _LoopTransport:
    """A libcurl multi handle in one event loop. The loop watches the handle's sockets and timer."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, options: TransferOptions, connections: int, per_host: int
    ) -> None:
        self._loop = loop
        self._options = options
        self._max_idle_transfers = connections
        self._watcher = create_socket_watcher(loop, self._act, self._collect_ended)
        self._timer = LazyTimer(loop, self._on_timer)
        self._soon_handle: asyncio.Handle | None = None
        self._deadline_timer = LazyTimer(loop, self._end_overdue)
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_PIPELINING, pycurl.PIPE_MULTIPLEX)
        self._multi.setopt(pycurl.M_MAX_TOTAL_CONNECTIONS, connections)
        self._multi.setopt(pycurl.M_MAX_HOST_CONNECTIONS, per_host)
        self._multi.setopt(pycurl.M_MAXCONNECTS, connections)
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._watcher.wanted)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._set_timer)
        self._waiting: list[tuple[TimedRequest, OnResponses]] = []
        """Requests that are started together in the next iteration of the event loop."""
        self._in_flight: dict[pycurl.Curl, _InFlight] = {}
        self._results: list[tuple[OnResponses, tuple[Any, HttpResponse | TransportFailure]]] = []
        """Results that the current callback reports when it ends."""
        self._idle_transfers: list[Transfer] = []
        self._connections = PooledConnections()

    def begin(self, exchanges: Sequence[TimedRequest], ended: OnResponses) -> None:
        """Starts requests, together with all others that are begun in the same iteration of the event loop.

        Running each step for all requests is faster than running all steps for each request, because the code
        of a step stays in the processor's cache.
        """
        if not self._waiting:
            self._loop.call_soon(self._start_waiting)
        self._waiting += [(exchange, ended) for exchange in exchanges]

    def _start_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        guard, finished = self._options.guard, self._results
        shortest_ms = _MAX_TIMEOUT_MS
        for (request, timeout_ms, handle), ended in waiting:
            failure = find_request_problem(request, guard)
            headers = build_header_lines(request.headers, len(request.body))
            if failure is not None or headers is None:
                finished.append((ended, (handle, failure or _BAD_HEADER)))
                continue
            if timeout_ms > _MAX_TIMEOUT_MS:
                timeout_ms = _MAX_TIMEOUT_MS
            transfer = (
                self._idle_transfers.pop()
                if self._idle_transfers
                else Transfer(self._options, self._connections)
            )
            try:
                transfer.prepare(request, headers, timeout_ms)
            except (pycurl.error, TypeError, ValueError):  # passed our own checks, but libcurl rejects it
                transfer.close()
                finished.append((ended, (handle, _UNWRITABLE)))
                continue
            self._in_flight[transfer.curl] = (transfer, handle, ended)
            self._multi.add_handle(transfer.curl)
            if timeout_ms < shortest_ms:
                shortest_ms = timeout_ms
        if self._in_flight:
            self._deadline_timer.set_no_later_than(self._loop.time() + shortest_ms / 1000)
        self._report_results()

    def give_up(self, marks: Collection[Any]) -> None:
        """Aborts the transfers with these handles and closes their connections, unless they have ended."""
        self._waiting = [one for one in self._waiting if one[0][2] not in marks]
        for transfer, handle, _ in list(self._in_flight.values()):
            if handle in marks:
                del self._in_flight[transfer.curl]
                self._multi.remove_handle(transfer.curl)
                transfer.close()

    def close(self) -> None:
        self._timer.close()
        self._deadline_timer.close()
        if self._soon_handle is not None:
            self._soon_handle.cancel()
        self._results += [(ended, (handle, _DROPPED)) for (_, _, handle), ended in self._waiting]
        self._waiting.clear()
        for transfer, handle, ended in self._in_flight.values():
            self._multi.remove_handle(transfer.curl)
            self._results.append((ended, (handle, transfer.result(pycurl.E_ABORTED_BY_CALLBACK))))
            transfer.close()
        self._in_flight.clear()
        if not self._loop.is_closed():
            self._report_results()
        for transfer in self._idle_transfers:
            transfer.close()
        self._idle_transfers.clear()
        self._watcher.close()
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, None)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, None)
        self._multi.close()

    def _set_timer(self, timeout_ms: int) -> None:
        """Schedules the next call into libcurl, which must not be called from within this callback."""
        if timeout_ms == 0:
            if self._soon_handle is None:
                self._soon_handle = self._loop.call_soon(self._on_soon)
        else:
            self._timer.set(None if timeout_ms < 0 else self._loop.time() + timeout_ms / 1000)

    def _on_soon(self) -> None:
        self._soon_handle = None
        self._on_timer()

    def _on_timer(self) -> None:
        self._act(pycurl.SOCKET_TIMEOUT, 0)
        self._collect_ended()

    def _end_overdue(self) -> None:
        """Ends transfers whose time is up. libcurl's own timeout ignores those that wait for a connection."""
        for transfer, *_ in list(self._in_flight.values()):
            left_ms = transfer.left_ms()
            if left_ms <= 0:
                self._end(transfer.curl, pycurl.E_OPERATION_TIMEDOUT)
            else:
                self._deadline_timer.set_no_later_than(self._loop.time() + left_ms / 1000)
        self._report_results()

    def _act(self, descriptor: int, events: int) -> None:
        try:
            self._multi.socket_action(descriptor, events)
        except pycurl.error:
            return  # The failed transfer is reported by `info_read`.

    def _collect_ended(self) -> None:
        """Collects the transfers that have ended and reports their results."""
        while True:
            queued, ended, failed = self._multi.info_read()
            for curl in ended:
                self._end(curl, pycurl.E_OK)
            for curl, errno, _ in failed:
                self._end(curl, errno)
            if not queued:
                break
        self._report_results()

    def _end(self, curl: pycurl.Curl, errno: int) -> None:
        self._multi.remove_handle(curl)
        if errno and self._in_flight[curl][0].prepare_retry():
            self._multi.add_handle(curl)
            return
        transfer, handle, ended = self._in_flight.pop(curl)
        self._results.append((ended, (handle, transfer.result(errno))))
        if len(self._idle_transfers) < self._max_idle_transfers and transfer.rests():
            self._idle_transfers.append(transfer)
        else:
            transfer.close()

    def _report_results(self) -> None:
        if not self._results:
            return
        finished, self._results = self._results, []
        by_callback: dict[OnResponses, list[tuple[Any, HttpResponse | TransportFailure]]] = {}
        for ended, result in finished:
            by_callback.setdefault(ended, []).append(result)
        for ended, results in by_callback.items():
            try:
                ended(results)
            except Exception:
                log.exception("the results of %d requests could not be processed", len(results))


def _resolve(
    results: list[tuple[asyncio.Future[HttpResponse | TransportFailure], HttpResponse | TransportFailure]],
) -> None:
    """Wakes the caller of `send` for each result."""
    for future, result in results:
        if not future.done():
            future.set_result(result)
