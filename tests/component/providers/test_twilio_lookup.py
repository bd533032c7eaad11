"""Twilio over a real socket: look-ups of messages, and sends with faults."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from homing import Channel, Content
from homing.core.ids import uuid7
from homing.core.lifecycle.receipts import Callback, ReceiptEvent
from homing.core.notifications import OutcomeKind
from homing.core.ports.providers import SupportsCallbacks, SupportsLookup
from homing.net.http_client import CurlTransport
from homing.providers.twilio.callbacks import read_callback
from homing.providers.twilio.provider import TwilioProvider
from homing.testing.fault_server import EMPTY, RESET_AFTER_READING, FaultServer, ServerAction, answer
from support.openapi_validation import OpenApi
from support.sms_deliveries import ACCOUNT, NOW_MS, SID, a_delivery, a_twilio

SPEC = OpenApi("twilio_messages.openapi.json")
MADE_MS = NOW_MS
DELIVERY = a_delivery(notification_id=uuid7(MADE_MS, 1))


@pytest.fixture
async def transport() -> AsyncIterator[CurlTransport]:
    made = CurlTransport()
    yield made
    await made.close()


@pytest.fixture
async def server() -> AsyncIterator[FaultServer]:
    async with FaultServer(otherwise=answer(404, b"{}")) as made:
        yield made


@pytest.fixture
def twilio(transport: CurlTransport, server: FaultServer) -> TwilioProvider:
    return a_twilio(transport, base_url=server.url + "/")


def says(status: int, body: Any) -> ServerAction:
    return answer(status, json.dumps(body).encode(), {"content-type": "application/json"})


def a_message(status: str = "delivered", **fields: Any) -> dict[str, Any]:
    made = format_datetime(datetime.fromtimestamp(MADE_MS / 1000 + 2, UTC))
    return {
        "sid": SID,
        "status": status,
        "body": "Your parcel is here",
        "to": "+15558675310",
        "direction": "outbound-api",
        "date_created": made,
        "error_code": None,
        **fields,
    }


def a_page(*messages: Any, more: str | None = None) -> ServerAction:
    return says(200, {"messages": messages, "next_page_uri": more})


def test_it_supports_callbacks_and_look_ups() -> None:
    assert isinstance(a_twilio(), SupportsCallbacks)
    assert isinstance(a_twilio(), SupportsLookup)


async def test_a_message_is_looked_up_by_its_id(twilio: TwilioProvider, server: FaultServer) -> None:
    server.play(says(200, a_message()))
    receipt = await twilio.look_up(DELIVERY, SID)
    assert receipt is not None
    assert (receipt.event, receipt.provider_message_id) == (ReceiptEvent.DELIVERED, SID)
    assert (receipt.notification_id, receipt.attempt) == (DELIVERY.notification_id, 2)
    (asked,) = server.received
    assert SPEC.check(asked.method, server.url + asked.path) == "FetchMessage"
    assert asked.headers["authorization"].startswith("Basic ")


async def test_a_look_up_and_a_callback_give_the_same_event(
    twilio: TwilioProvider, server: FaultServer
) -> None:
    server.play(says(200, a_message("undelivered", error_code=30450)))
    found = await twilio.look_up(DELIVERY, SID)
    body = f"MessageSid={SID}&MessageStatus=undelivered&ErrorCode=30450".encode()
    form = {"content-type": "application/x-www-form-urlencoded"}
    (heard,) = read_callback(Callback(url="https://n.example.org/", headers=form, body=body), NOW_MS).receipts
    assert found is not None
    assert (found.event_id, found.error_code) == (heard.event_id, "30450")
    assert (found.outcome, found.retry_after_ms) == (heard.outcome, heard.retry_after_ms)
    assert (found.outcome, found.retry_after_ms) == (OutcomeKind.TRANSIENT, 30 * 60_000)


@pytest.mark.parametrize(
    "act",
    [
        says(404, {"code": 20404}),
        says(500, {}),
        says(200, {"sid": SID}),
        says(200, {"sid": SID, "status": "received"}),
        says(200, []),
        answer(200, b"<html>"),
        EMPTY,
        RESET_AFTER_READING,
    ],
)
async def test_a_look_up_without_a_usable_response_returns_nothing(
    twilio: TwilioProvider, server: FaultServer, act: ServerAction
) -> None:
    server.play(act, act, act)
    assert await twilio.look_up(DELIVERY, SID) is None
    assert await twilio.look_up(DELIVERY, None) is None


async def test_an_id_that_is_not_twilio_s_is_not_looked_up(
    twilio: TwilioProvider, server: FaultServer
) -> None:
    assert await twilio.look_up(DELIVERY, "../../Accounts") is None
    assert server.received == []


async def test_a_message_without_an_id_is_searched_by_recipient_day_and_text(
    twilio: TwilioProvider, server: FaultServer
) -> None:
    server.play(a_page(a_message(sid="SM" + "9" * 32, body="another text"), a_message("sent")))
    receipt = await twilio.look_up(DELIVERY, None)
    assert receipt is not None
    assert (receipt.event, receipt.provider_message_id) == (ReceiptEvent.SENT, SID)
    (asked,) = server.received
    assert SPEC.check(asked.method, server.url + asked.path) == "ListMessage"
    query = parse_qs(urlsplit(asked.path).query)
    assert query == {"To": ["+15558675310"], "DateSent>": ["2024-01-15"], "PageSize": ["20"]}


@pytest.mark.parametrize(
    "page",
    [
        a_page(),
        a_page(a_message(), a_message(sid="SM" + "9" * 32)),
        a_page(a_message(), more="/2010-04-01/next"),
        a_page(a_message(body="another text")),
        a_page(a_message(date_created="Mon, 15 Jan 2024 11:00:00 +0000")),
        a_page(a_message(date_created="yesterday")),
        a_page(a_message(date_created="Sun, 06 Nov 28094 08:49237040000")),
        a_page(a_message(date_created=None)),
        a_page(a_message(direction="inbound")),
        a_page(7, None, [], {}),
    ],
)
async def test_an_ambiguous_search_finds_nothing(
    twilio: TwilioProvider, server: FaultServer, page: ServerAction
) -> None:
    server.play(page)
    assert await twilio.look_up(DELIVERY, None) is None


async def test_a_message_that_could_not_have_been_sent_is_not_searched(
    twilio: TwilioProvider, server: FaultServer
) -> None:
    assert await twilio.look_up(a_delivery(channel=Channel.CHAT, address="https://x.org"), None) is None
    server.play(a_page(a_message(body="")))
    assert await twilio.look_up(a_delivery(content=Content(data={"mediaUrl": "https://a.b/c"})), None) is None


async def test_a_send_over_the_wire_is_accepted(twilio: TwilioProvider, server: FaultServer) -> None:
    server.play(says(201, a_message("queued")))
    outcome = await twilio.send(a_delivery())
    assert (outcome.kind, outcome.provider_message_id) == (OutcomeKind.ACCEPTED, SID)
    (received,) = server.received
    assert received.path == f"/2010-04-01/Accounts/{ACCOUNT}/Messages.json"


async def test_an_unsendable_message_is_not_requested(twilio: TwilioProvider, server: FaultServer) -> None:
    outcome = await twilio.send(a_delivery(content=Content(text="x" * 1601)))
    assert (outcome.kind, outcome.error_code) == (OutcomeKind.BAD_CONTENT, "too_long")
    assert server.connections == 0


async def test_the_health_check_reads_what_every_key_may_read(
    twilio: TwilioProvider, server: FaultServer
) -> None:
    server.play(says(200, {"messages": []}), says(503, {}), says(401, {"code": 20003}), says(404, {}))
    assert await twilio.check()
    assert not await twilio.check()
    assert not await twilio.check()
    assert not await twilio.check()
    path = f"/2010-04-01/Accounts/{ACCOUNT}/Messages.json?PageSize=1"
    assert {received.path for received in server.received} == {path}
