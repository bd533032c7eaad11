"""Failures that providers report later: what is sent again, by which provider and when.

The providers are real, with real signatures. The test controls the clock, and `process` sends what is due.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import pytest

from homing import Callback, Event, Homing, Recipient, Status
from homing.core.notifications import OutcomeKind
from homing.net.http_client import CurlTransport
from homing.providers.common.error_tables import load_error_table
from homing.providers.sns.provider import SnsProvider
from homing.providers.twilio.callbacks import compute_signature
from homing.providers.twilio.provider import TwilioProvider
from homing.stores.sqlite import SqliteStore
from homing.testing.fault_server import FaultServer, ReceivedRequest, ServerAction, answer
from homing.testing.manual_clock import ManualClock
from support.fake_vendors import PUBLIC, FakeVendors, Report, posts, signed_post

ERRORS = json.loads((Path(__file__).parents[1] / "vectors" / "twilio_errors.json").read_text())
REPORTED = [row for row in ERRORS["codes"] if row["stage"] == "callback"]
ACCOUNT, TOKEN = "AC" + "0" * 32, "token"
URL = "https://notify.example.org/twilio"
BACKOFF_MS = 10_000
WAITS_MS = {30450: 30 * 60_000}
"""The contract requires "wait at least 30 minutes"."""
DAY_MS = 86_400_000
STEADY = {"name": "steady", "base_ms": BACKOFF_MS, "factor": 1.0, "cap_ms": 0, "jitter": "none"}


class SteppedClock(ManualClock):
    """A clock that passes only by `advance`. The engine's own short pauses end by themselves."""

    async def sleep_ms(self, duration_ms: int) -> None:
        await asyncio.sleep(0.001)


class TwoVendorSetup:
    """Two vendors, Twilio and SNS, and an engine that uses them."""

    def __init__(self, engine: Homing, clock: ManualClock, server: FaultServer, alerts: list[str]) -> None:
        self.engine = engine
        self.clock = clock
        self.alerts = alerts
        self._server = server

    @property
    def calls(self) -> list[str]:
        """The vendors that were asked to send, in order."""
        return ["twilio" if "Messages.json" in one.path else "sns" for one in self._server.received]

    async def due_after(self, duration_ms: int) -> list[str]:
        """Advances the clock and returns the vendors that are asked to send."""
        before = len(self.calls)
        self.clock.advance(duration_ms)
        await self.engine.process()
        return self.calls[before:]

    async def report(self, code: object, status: str = "undelivered") -> None:
        """Lets Twilio report on its last message."""
        sends = [one for one in self._server.received if "Messages.json" in one.path]
        url = dict(parse_qsl(sends[-1].body.decode()))["StatusCallback"]
        fields = [("MessageSid", sid(len(sends))), ("MessageStatus", status), ("ErrorCode", str(code))]
        headers = {
            "content-type": "application/x-www-form-urlencoded",
            "x-twilio-signature": compute_signature(TOKEN, url, fields),
        }
        heard = await self.engine.handle_callback(
            "twilio", Callback(url=url, headers=headers, body=urlencode(fields).encode())
        )
        assert heard.applied + heard.unchanged >= 1


def sid(number: int) -> str:
    return f"SM{number:032x}"


@asynccontextmanager
async def a_line(*, also_sns: bool = False, **settings: Any) -> AsyncIterator[TwoVendorSetup]:
    numbers = count(1)

    def company(received: ReceivedRequest) -> ServerAction:
        if "Messages.json" in received.path:
            return answer(201, json.dumps({"sid": sid(next(numbers)), "status": "queued"}).encode())
        return answer(200, b"<R><PublishResult><MessageId>m-1</MessageId></PublishResult></R>")

    clock, alerts = SteppedClock(), list[str]()

    def told(event: Event) -> None:
        # A day passes at once, so events that were written just before are late.
        if event.name == "Alert" and event.payload["alert"] != "SinkLag":
            alerts.append(event.payload["alert"])

    async with FaultServer(company) as server:
        transport = CurlTransport()
        providers: dict[str, Any] = {
            "twilio": TwilioProvider(
                transport,
                account_sid=ACCOUNT,
                auth_token=TOKEN,
                sender="+15550000",
                base_url=server.url,
                callback_url=URL,
            ),
        }
        if also_sns:
            providers["sns"] = SnsProvider(
                transport,
                region="us-east-1",
                access_key_id="AKIDEXAMPLE",
                secret_access_key="wJalrXUtnFEMI",
                base_url=server.url,
            )
        made = Homing(
            SqliteStore(":memory:", clock=clock.now_ms),
            providers=providers,
            clock=clock,
            on_event=told,
            **{"rules": [STEADY], "receipts": {"pause_ms": 0}, **settings},
        )
        async with made as engine:
            yield TwoVendorSetup(engine, clock, server, alerts)
        await transport.close()


async def text(line: TwoVendorSetup, **fields: Any) -> str:
    """Sends one SMS that Twilio accepts."""
    sent = await line.engine.send(Recipient(phone="+15550100"), channel="sms", body="Hello", **fields)
    assert await line.due_after(0) == ["twilio"]
    return sent.id


async def see(line: TwoVendorSetup, id: str) -> tuple[Status, str]:
    found = await line.engine.get(id)
    return found.status, found.provider


# Twilio, over real sockets -------------------------------------------------------------------------------


@pytest.mark.parametrize("row", REPORTED, ids=lambda row: str(row["code"]))
async def test_with_twilio_alone_every_code_is_resent_by_its_class(row: dict[str, Any]) -> None:
    async with a_line() as line:
        id = await text(line)
        await line.report(row["code"])
        assert await line.due_after(0) == []
        if row["retry_class"] == "transient":
            wait_ms = max(BACKOFF_MS, WAITS_MS.get(row["code"], 0))
            assert await line.due_after(wait_ms - 1) == []
            assert await line.due_after(1) == ["twilio"]
            assert await see(line, id) == (Status.SENT, "twilio")
        else:
            assert await see(line, id) == (Status.FAILED, "twilio")
            assert await line.due_after(DAY_MS) == []
        assert line.alerts == (["ProviderFault"] if row["retry_class"] == "config" else [])


@pytest.mark.parametrize("row", REPORTED, ids=lambda row: str(row["code"]))
async def test_with_another_provider_every_code_moves_by_its_class(row: dict[str, Any]) -> None:
    async with a_line(also_sns=True) as line:
        id = await text(line)
        await line.report(row["code"])
        if row["retry_class"] in ("transient", "config"):
            assert await line.due_after(0) == ["sns"]
            assert await see(line, id) == (Status.SENT, "sns")
        else:
            assert await line.due_after(DAY_MS) == []
            assert await see(line, id) == (Status.FAILED, "twilio")
        assert line.alerts == (["ProviderFault"] if row["retry_class"] == "config" else [])


@pytest.mark.parametrize("code", [30008, 30003])
async def test_an_sms_that_is_always_undelivered_is_never_sent_twice_at_once(code: int) -> None:
    async with a_line() as line:
        id = await text(line)
        for attempts in range(1, 7):
            assert len(line.calls) == attempts
            for _ in range(3):
                await line.report(code)
                assert await line.due_after(0) == []
            assert await line.due_after(BACKOFF_MS) == ["twilio"]
        await line.report(code)
        assert await line.due_after(BACKOFF_MS) == [], "one more than the maximum is granted, and that is all"
        assert await see(line, id) == (Status.FAILED, "twilio")


@pytest.mark.parametrize("code", ["", "39999", "not a number"])
async def test_an_unknown_code_is_resent_once(code: str) -> None:
    async with a_line() as line:
        id = await text(line)
        await line.report(code, "undelivered")
        await line.report(code, "failed")
        assert await line.due_after(BACKOFF_MS - 1) == []
        assert await line.due_after(1) == ["twilio"]
        await line.report(code)
        assert await see(line, id) == (Status.FAILED, "twilio")
        assert await line.due_after(DAY_MS) == []


async def test_a_forced_provider_is_kept_and_its_fault_is_final() -> None:
    async with a_line(also_sns=True) as line:
        waits, ends = await text(line, provider="twilio"), await text(line, provider="twilio")
        await line.report(30034)
        assert await see(line, ends) == (Status.FAILED, "twilio")
        assert await see(line, waits) == (Status.SENT, "twilio")


# Operation ids of Communication Services ------------------------------------------------------------------


async def test_each_resend_after_a_reported_failure_has_an_operation_id_of_its_own() -> None:
    clock, reports = SteppedClock(int(time.time() * 1000)), list[Report]()
    vendors = FakeVendors(lambda name, address, number: ["hard"] if name == "acs" else ())
    rule = {**STEADY, "bounce_failover": "always"}
    settings: dict[str, Any] = {"rules": [rule], "receipts": {"pause_ms": 0}}
    store = SqliteStore(":memory:", clock=clock.now_ms)
    made = Homing(store, providers={"acs": vendors.providers()["acs"]}, clock=clock, **settings)
    async with made as engine:
        sent = await engine.send(Recipient(email="ada@example.org"), channel="email", body="Hello")
        for resends in range(4):
            await engine.process()
            assert vendors.sends == {("acs", "ada@example.org"): resends + 1}
            for post in posts(vendors.reports):
                headers = {name.lower(): value for name, value in post.headers.items()}
                raw = Callback(url=PUBLIC + post.path, headers=headers, body=post.body)
                assert (await engine.handle_callback("acs", raw)).applied == 1
            reports += vendors.reports
            vendors.reports = []
            assert (await engine.get(sent.id)).status is Status.RETRYING
            clock.advance(BACKOFF_MS)
        attempts = (await engine.history(sent.id)).attempts
        assert len({one.provider_message_id for one in attempts}) == len(reports) == 4
        assert attempts[0].provider_message_id == sent.id


# Rules by type and receipts ------------------------------------------------------------------------------


async def test_a_rule_by_type_decides_whether_a_bounce_fails_over_and_how_long_it_waits() -> None:
    always = {"name": "orders", "type": "order", "bounce_failover": "always"}
    slow = {"name": "slow", "type": "slow", "base_ms": 60_000, "factor": 1.0, "jitter": "none"}
    async with a_line(also_sns=True, rules=[STEADY, always]) as line:
        order = await text(line, type="order")
        explained = await line.engine.explain(order)
        assert explained.resolution.policy.bounce_failover == "always"
        await line.report(30005)
        assert await line.due_after(0) == ["sns"]
        other = await text(line, type="news")
        await line.report(30005)
        assert await see(line, other) == (Status.FAILED, "twilio")
    async with a_line(rules=[STEADY, slow]) as line:
        await text(line, type="slow")
        await line.report(30008)
        assert await line.due_after(59_999) == []
        assert await line.due_after(1) == ["twilio"]


# All five vendors ----------------------------------------------------------------------------------------

CHANNELS = {"twilio": "sms", "sns": "sms", "sendgrid": "email", "acs": "email", "fcm": "push"}
ADDRESSES = {
    "sms": {"phone": "+15550100"},
    "email": {"email": "ada@example.org"},
    "push": {"device_token": "token-1"},
}
OTHERS = {"twilio": "sns", "sns": "twilio", "sendgrid": "acs", "acs": "sendgrid"}


async def reported(
    vendor: str, whats: list[str], check: Callable[[Homing, ManualClock, FakeVendors, str], Awaitable[None]]
) -> None:
    """Sends one message through this vendor, which then reports these events."""
    clock = SteppedClock(int(time.time() * 1000))  # the vendors use the real clock for dates and signatures
    vendors = FakeVendors(lambda name, address, number: whats if (name, number) == (vendor, 1) else ())
    providers = vendors.providers()
    order = [vendor, *(one for one in providers if one != vendor)]
    settings: dict[str, Any] = {"rules": [STEADY], "receipts": {"pause_ms": 0}}
    made = Homing(
        SqliteStore(":memory:", clock=clock.now_ms),
        providers={one: providers[one] for one in order},
        clock=clock,
        **settings,
    )
    async with made as engine:
        channel = CHANNELS[vendor]
        recipient = Recipient(**ADDRESSES[channel])
        sent = await engine.send(recipient, channel=channel, title="Hello", body="Hello")
        await engine.process()
        for post in posts(vendors.reports):
            headers = {name.lower(): value for name, value in post.headers.items()}
            raw = Callback(url=PUBLIC + post.path, headers=headers, body=post.body)
            assert (await engine.handle_callback(vendor, raw)).applied >= 1
        vendors.reports = list[Report]()
        await engine.process()
        await check(engine, clock, vendors, sent.id)


def sends(vendors: FakeVendors) -> dict[str, int]:
    """Returns how often each vendor was asked to send."""
    return {vendor: number for (vendor, _), number in vendors.sends.items()}


@pytest.mark.parametrize("what", ["content", "hard"])
@pytest.mark.parametrize("vendor", CHANNELS)
async def test_bad_content_and_bad_recipients_are_final_for_every_vendor(vendor: str, what: str) -> None:
    async def check(engine: Homing, clock: ManualClock, vendors: FakeVendors, id: str) -> None:
        clock.advance(BACKOFF_MS)
        await engine.process()
        assert (await engine.get(id)).status is Status.FAILED
        assert sends(vendors) == {vendor: 1}

    await reported(vendor, [what], check)


@pytest.mark.parametrize("what", ["soft", "unknown"])
@pytest.mark.parametrize("vendor", CHANNELS)
async def test_a_transient_failure_moves_at_once_or_waits_for_every_vendor(vendor: str, what: str) -> None:
    async def check(engine: Homing, clock: ManualClock, vendors: FakeVendors, id: str) -> None:
        if vendor in OTHERS:
            assert sends(vendors) == {vendor: 1, OTHERS[vendor]: 1}
            return
        assert sends(vendors) == {vendor: 1}
        clock.advance(BACKOFF_MS)
        await engine.process()
        assert sends(vendors) == {vendor: 2}

    await reported(vendor, [what], check)


@pytest.mark.parametrize("vendor", CHANNELS)
async def test_a_provider_fault_moves_to_another_provider_or_is_final_for_every_vendor(vendor: str) -> None:
    async def check(engine: Homing, clock: ManualClock, vendors: FakeVendors, id: str) -> None:
        if vendor in OTHERS:
            assert sends(vendors) == {vendor: 1, OTHERS[vendor]: 1}
            return
        clock.advance(BACKOFF_MS)
        await engine.process()
        assert (await engine.get(id)).status is Status.FAILED
        assert sends(vendors) == {vendor: 1}

    await reported(vendor, ["fault"], check)


async def test_an_email_that_sendgrid_drops_for_an_earlier_bounce_is_final() -> None:
    async def check(engine: Homing, clock: ManualClock, vendors: FakeVendors, id: str) -> None:
        assert (await engine.get(id)).status is Status.FAILED
        assert sends(vendors) == {"sendgrid": 1}

    await reported("sendgrid", ["hard drop"], check)


# Every code of every table ---------------------------------------------------------------------------------

LISTED = [
    (vendor, code)
    for vendor in ("twilio", "acs", "sns", "fcm")
    for code in load_error_table(vendor).codes
    if code.isdigit() or vendor != "twilio"
]
"""The vendor and code of each entry. Twilio's codes are numbers; the other ones are Homing's own."""

FINAL = {OutcomeKind.BAD_CONTENT, OutcomeKind.BAD_RECIPIENT, OutcomeKind.DEAD_ADDRESS, OutcomeKind.OPTED_OUT}
BODIES: dict[str, Callable[[str, str], object]] = {
    "twilio": lambda id, code: {"MessageSid": id, "MessageStatus": "undelivered", "ErrorCode": code},
    "acs": lambda id, code: [
        {
            "id": code,
            "eventType": "Microsoft.Communication.EmailDeliveryReportReceived",
            "data": {"messageId": id, "status": code},
        }
    ],
    "sns": lambda id, code: {
        "notification": {"messageId": id},
        "delivery": {"providerResponse": code},
        "status": "FAILURE",
    },
    "fcm": lambda id, code: {"messageId": id, "event": "failed", "error": code},
}


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "with another"])
@pytest.mark.parametrize("vendor", BODIES)
async def test_every_code_of_a_vendor_s_table_is_followed_by_its_class(vendor: str, alone: bool) -> None:
    codes = [code for one, code in LISTED if one == vendor]
    table, clock = load_error_table(vendor), SteppedClock(int(time.time() * 1000))
    vendors = FakeVendors(lambda name, address, number: ())
    providers = vendors.providers()
    other = OTHERS.get(vendor)
    names = [vendor] if alone or other is None else [vendor, other]
    settings: dict[str, Any] = {"rules": [STEADY], "receipts": {"pause_ms": 0}}
    made = Homing(
        SqliteStore(":memory:", clock=clock.now_ms),
        providers={one: providers[one] for one in names},
        clock=clock,
        **settings,
    )
    async with made as engine:
        for number, code in enumerate(codes):
            channel = CHANNELS[vendor]
            address = {
                "sms": f"+1555{number:07}",
                "email": f"a{number}@example.org",
                "push": f"token-{number}",
            }
            field = next(iter(ADDRESSES[channel]))
            recipient = Recipient(**{field: address[channel]})
            sent = await engine.send(recipient, channel=channel, title="Hello", body="Hello")
            await engine.process()
            (message_id,) = (await engine.get(sent.id)).provider_message_ids
            body = json.dumps(BODIES[vendor](str(message_id), code))
            post = signed_post(vendor, body, code)
            headers = {name.lower(): value for name, value in post.headers.items()}
            raw = Callback(url=PUBLIC + post.path, headers=headers, body=post.body)
            assert (await engine.handle_callback(vendor, raw)).applied >= 1, code
            found, kind = await engine.get(sent.id), table.codes[code].outcome
            follows = (found.status, found.provider)
            if kind in FINAL or (kind is OutcomeKind.PROVIDER_FAULT and len(names) == 1):
                assert follows == (Status.FAILED, vendor), code
                continue
            assert follows == (Status.RETRYING, names[-1]), code
            wait_ms = 0 if len(names) > 1 else max(BACKOFF_MS, table.codes[code].retry_after_ms or 0)
            due_at = found.next_retry_at
            assert due_at is not None
            assert int(due_at.timestamp() * 1000) == clock.now_ms() + wait_ms, code
