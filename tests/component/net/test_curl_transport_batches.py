"""Requests started together over real sockets, with one callback for all outcomes; and a provider."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from msgspec.structs import replace

from homing.core.lifecycle.outcomes import Outcome
from homing.core.notifications import Channel, Content, OutcomeKind, Priority, Recipient
from homing.core.ports.providers import Delivery, SupportsBatchSend
from homing.net.http_client import CurlTransport
from homing.net.http_messages import HttpRequest, HttpResponse, TransportFailure
from homing.providers.common.http_provider import HttpProvider, Unsendable
from homing.testing import fault_server
from homing.testing.fault_server import FaultServer

K = OutcomeKind


class RecordedOutcomes:
    """Records the reported outcomes, and lets a test wait for them."""

    def __init__(self) -> None:
        self.said: dict[Any, Any] = {}
        self.calls = 0
        self._more = asyncio.Event()

    def __call__(self, results: list[tuple[Any, Any]]) -> None:
        assert not self.said.keys() & {mark for mark, _ in results}, "no result is reported twice"
        self.said.update(results)
        self.calls += 1
        self._more.set()

    async def of(self, number: int) -> None:
        async with asyncio.timeout(60):
            while len(self.said) < number:
                self._more.clear()
                await self._more.wait()


async def test_each_request_is_reported_once_and_many_together(
    server: FaultServer, transport: CurlTransport
) -> None:
    told = RecordedOutcomes()
    transport.begin([(HttpRequest(f"{server.url}/{n}", b"{}"), 60_000, n) for n in range(200)], told)
    await told.of(200)
    assert {(answer.status, answer.body) for answer in told.said.values()} == {(200, b"ok")}
    assert len(server.received) == 200
    assert told.calls < 200


async def test_a_request_that_cannot_be_sent_is_reported_with_the_others(
    server: FaultServer, transport: CurlTransport
) -> None:
    told = RecordedOutcomes()
    bad = HttpRequest(server.url, b"{}", (("x-note", "one\r\nx-other: two"),))
    transport.begin([(bad, 60_000, "bad"), (HttpRequest(server.url, b"{}"), 60_000, "good")], told)
    assert told.said == {}, "never before it returns"
    await told.of(2)
    assert (told.said["bad"].code, told.said["good"].status) == ("bad_request", 200)
    assert len(server.received) == 1


async def test_each_request_ends_within_its_own_timeout(
    server: FaultServer, transport: CurlTransport
) -> None:
    server.play(fault_server.HANG_AFTER_READING, fault_server.HANG_AFTER_READING)
    told = RecordedOutcomes()
    transport.begin([(HttpRequest(server.url, b"{}"), ms, ms) for ms in (3_000, 600_000)], told)
    await server.wait_for_requests(2)
    await told.of(1)
    transport.give_up({600_000})
    assert {ms: (failure.code, failure.written) for ms, failure in told.said.items()} == {
        3_000: ("timeout", True)
    }


async def test_an_aborted_request_is_not_reported(server: FaultServer, transport: CurlTransport) -> None:
    server.play(fault_server.HANG_AFTER_READING, fault_server.HANG_AFTER_READING)
    told = RecordedOutcomes()
    transport.begin([(HttpRequest(server.url, b"{}"), 60_000, "begun")], told)
    await server.wait_for_requests(1)
    transport.begin([(HttpRequest(server.url, b"{}"), 60_000, "waiting")], told)
    transport.give_up({"begun", "waiting"})
    transport.begin([(HttpRequest(server.url, b"{}"), 300, "after")], told)
    await told.of(1)
    assert list(told.said) == ["after"]
    assert len(server.received) == 2


async def test_closing_reports_all_running_requests(server: FaultServer) -> None:
    server.play(fault_server.HANG_AFTER_READING)
    transport, told = CurlTransport(), RecordedOutcomes()
    transport.begin([(HttpRequest(server.url, b"{}"), 60_000, "written")], told)
    await server.wait_for_requests(1)
    transport.begin([(HttpRequest(server.url, b"{}"), 60_000, "waiting")], told)
    await transport.close()
    assert {mark: (failure.code, failure.written) for mark, failure in told.said.items()} == {
        "written": ("dropped", True),
        "waiting": ("dropped", False),
    }


async def test_a_callback_that_raises_does_not_affect_the_others(
    server: FaultServer, transport: CurlTransport, caplog: pytest.LogCaptureFixture
) -> None:
    broke = asyncio.Event()

    def broken(results: list[tuple[Any, HttpResponse | TransportFailure]]) -> None:
        broke.set()
        raise RuntimeError("not now")

    told = RecordedOutcomes()
    with caplog.at_level(logging.ERROR):
        transport.begin([(HttpRequest(server.url, b"{}"), 60_000, "a")], broken)
        transport.begin([(HttpRequest(server.url, b"{}"), 60_000, "b")], told)
        async with asyncio.timeout(60):
            await asyncio.gather(told.of(1), broke.wait())
    assert told.said["b"].status == 200
    assert "the results of 1 requests could not be processed" in caplog.text


# A provider on top --------------------------------------------------------------------------------


class SampleProvider(HttpProvider):
    """Posts the body of a message. It cannot build or read some of its deliveries."""

    def __init__(self, transport: CurlTransport, url: str) -> None:
        super().__init__(transport)
        self._url = url

    def build(self, delivery: Delivery, now_ms: int) -> HttpRequest:
        if delivery.content.body == "too long":
            raise Unsendable(K.BAD_CONTENT, "too_long", "the text is too long")
        if delivery.content.body == "broken":
            raise LookupError("no such thing")
        return HttpRequest(self._url, (delivery.content.body or "").encode())

    def classify(self, answer: HttpResponse, now_ms: int) -> Outcome:
        if answer.status != 200:
            raise ArithmeticError("unread")
        return Outcome(K.ACCEPTED)


def delivery(body: str, timeout_ms: int = 60_000) -> Delivery:
    return Delivery(
        notification_id="n",
        tenant="default",
        channel=Channel.CHAT,
        type="note",
        priority=Priority.HIGH,
        recipient=Recipient(),
        address="somewhere",
        content=Content(body=body),
        idempotency_key="n",
        attempt=1,
        timeout_ms=timeout_ms,
    )


async def test_a_provider_starts_what_it_can_and_reports_everything(
    server: FaultServer, transport: CurlTransport
) -> None:
    provider, told = SampleProvider(transport, server.url), RecordedOutcomes()
    assert isinstance(provider, SupportsBatchSend)
    assert provider.begins
    provider.begin([(delivery(body), body) for body in ("hello", "too long", "broken")], told)
    await told.of(3)
    assert told.said["hello"] == Outcome(K.ACCEPTED)
    assert told.said["too long"].kind is K.BAD_CONTENT
    assert isinstance(told.said["broken"], LookupError)
    assert [received.body for received in server.received] == [b"hello"]


async def test_a_batch_has_the_same_outcomes_as_single_sends(
    server: FaultServer, transport: CurlTransport
) -> None:
    provider, told = SampleProvider(transport, server.url), RecordedOutcomes()
    hangs = delivery("hello", timeout_ms=3_000)
    server.play(fault_server.HANG_AFTER_READING)
    alone = await provider.send(hangs)
    server.play(fault_server.HANG_AFTER_READING)
    provider.begin([(hangs, 1)], told)
    await told.of(1)
    assert told.said[1] == alone
    assert (alone.kind, alone.error_code) == (K.AMBIGUOUS, "timeout")
    nowhere = SampleProvider(transport, "http://127.0.0.1:1/")
    provider_told = RecordedOutcomes()
    nowhere.begin([(delivery("hello"), 1)], provider_told)
    await provider_told.of(1)
    assert provider_told.said[1] == await nowhere.send(delivery("hello"))
    assert provider_told.said[1].kind is K.TRANSIENT


async def test_an_unreadable_response_is_reported_as_the_error(
    server: FaultServer, transport: CurlTransport
) -> None:
    provider, told = SampleProvider(transport, server.url), RecordedOutcomes()
    server.play(fault_server.answer(500))
    provider.begin([(delivery("hello"), 1)], told)
    await told.of(1)
    assert isinstance(told.said[1], ArithmeticError)


async def test_a_provider_with_its_own_send_method_does_not_support_batches(transport: CurlTransport) -> None:
    class Own(SampleProvider):
        async def send(self, delivery: Delivery) -> Outcome:
            return await super().send(replace(delivery, attempt=2))

    assert not Own(transport, "http://127.0.0.1:1/").begins
