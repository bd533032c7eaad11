"""The transport works the same with every way of watching its sockets."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from typing import Any

import pytest

from homing.net.curl_sockets import LazyTimer
from homing.net.http_client import CurlTransport
from homing.net.http_messages import HttpRequest, HttpResponse, TransportFailure
from homing.testing import fault_server
from homing.testing.fault_server import FaultServer, ReceivedRequest


@pytest.fixture(params=["epoll", "the loop's own"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param != "epoll":
        monkeypatch.delattr(select, "epoll", raising=False)


@pytest.mark.usefixtures("either")
async def test_many_concurrent_requests_over_few_connections_all_get_their_responses() -> None:
    def script(received: ReceivedRequest) -> fault_server.ServerAction:
        if received.path.endswith("7"):
            return fault_server.RESET_AFTER_READING
        closes = received.path.endswith("3")
        headers = {"connection": "close"} if closes else {}
        return fault_server.answer(200, received.path.encode(), headers, then="close" if closes else "keep")

    transport = CurlTransport(max_host_connections=8)
    async with FaultServer(script) as server:
        paths = [f"/{number}" for number in range(200)]
        results = await asyncio.gather(
            *(
                transport.send(HttpRequest(url=server.url + path, body=b"x"), timeout_ms=60_000)
                for path in paths
            )
        )
        await transport.close()
    for path, result in zip(paths, results, strict=True):
        if path.endswith("7"):
            assert isinstance(result, TransportFailure)
            assert result.written
        else:
            assert isinstance(result, HttpResponse)
            assert result.body == path.encode()
    assert len(server.received) == len(paths)


@pytest.mark.usefixtures("either")
async def test_a_large_body_and_a_large_response_take_many_steps() -> None:
    transport = CurlTransport()
    async with FaultServer(lambda received: fault_server.answer(200, b"y" * 60_000)) as server:
        sent = HttpRequest(url=server.url, body=b"x" * 8_000_000)
        result = await transport.send(sent, timeout_ms=60_000)
        await transport.close()
    assert isinstance(result, HttpResponse)
    assert len(result.body) == 60_000


class _Loop:
    """A loop with only its clock and timers."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Callable[[], None], _Timer]] = []

    def call_at(self, at: float, call: Callable[[], None]) -> _Timer:
        timer = _Timer()
        self.timers.append((at, call, timer))
        return timer

    def run(self) -> int:
        """Runs until no timer is left, and returns how many fired."""
        rang = 0
        while live := [one for one in self.timers if not one[2].cancelled]:
            first = min(live, key=lambda one: one[0])
            self.timers.remove(first)
            self.now = first[0]
            first[1]()
            rang += 1
        return rang


class _Timer:
    cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


def alarm() -> tuple[_Loop, Any, list[float]]:
    loop = _Loop()
    rang: list[float] = []
    return loop, LazyTimer(loop, lambda: rang.append(loop.now)), rang  # type: ignore[arg-type]


def test_an_alarm_fires_at_the_time_it_was_last_set_for() -> None:
    loop, one, rang = alarm()
    one.set(5.0)
    one.set(9.0)
    one.set(7.0)
    loop.run()
    assert rang == [7.0]


def test_postponing_an_alarm_repeatedly_sets_no_timer() -> None:
    loop, one, rang = alarm()
    for at in range(1, 1000):
        one.set(float(at))
    assert len(loop.timers) == 1
    assert loop.run() == 2
    assert rang == [999.0]


def test_a_cancelled_alarm_does_not_fire() -> None:
    loop, one, rang = alarm()
    one.set(5.0)
    one.set(None)
    loop.run()
    one.set(6.0)
    one.close()
    loop.run()
    assert rang == []


def test_an_alarm_with_a_latest_time_keeps_an_earlier_one() -> None:
    loop, one, rang = alarm()
    one.set_no_later_than(5.0)
    one.set_no_later_than(8.0)
    one.set_no_later_than(3.0)
    loop.run()
    assert rang == [3.0]
