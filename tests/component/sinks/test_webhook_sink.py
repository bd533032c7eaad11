"""The signed-webhook sink over real sockets."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from homing import Homing, OutcomeKind, compose
from homing.core.errors import CallbackRefused, ConfigError, EventsRefused, SinkUnavailable
from homing.core.lifecycle.events import NOTIFICATION_FAILED, STATUS_CHANGED, Event, event_body
from homing.core.lifecycle.receipts import Callback
from homing.net.http_client import CurlTransport
from homing.net.secrets import Secret
from homing.net.ssrf_guard import AddressGuard, parse_networks
from homing.net.standard_webhooks import verify_webhook
from homing.settings import load_settings
from homing.sinks.webhook import WebhookSink
from homing.testing import ScriptedProvider
from homing.testing.fault_server import (
    HANG_AFTER_READING,
    OK,
    RESET_AFTER_READING,
    FaultServer,
    ReceivedRequest,
    ServerAction,
    answer,
    html_page,
    refusing_url,
    throttle,
)

NOW_MS = 1_760_000_000_000

OLD, NEW = ("whsec_" + b64encode(bytes([number]) * 32).decode() for number in (1, 2))


def transport(*, allow: bool = True) -> CurlTransport:
    networks = parse_networks(["127.0.0.0/8"], "x") if allow else ()
    return CurlTransport(guard=AddressGuard(networks=networks, http=allow))


def a_sink(url: str, **options: Any) -> WebhookSink:
    given = {"secret": NEW, "now_ms": lambda: NOW_MS, "transport": transport(), **options}
    return WebhookSink(url=f"{url}/events?key=hidden", **given)


@pytest.fixture
async def server() -> AsyncIterator[FaultServer]:
    async with FaultServer() as made:
        yield made


def an_event(number: int, notification: int | None = None, name: str = STATUS_CHANGED) -> Event:
    about = f"n-{number if notification is None else notification}"
    payload = {"eventType": name, "notificationId": about, "reason": "NO_ROUTE"}
    return Event(id=f"e-{number}", name=name, tenant="t", at=0, notification_id=about, payload=payload)


def an_alert(number: int) -> Event:
    payload = {"eventType": "Alert", "alert": "Test"}
    return Event(id=f"a-{number}", name="Alert", tenant="*", at=0, payload=payload)


def verify(received: ReceivedRequest, *secrets: str) -> None:
    callback = Callback(url="", headers=dict(received.headers), body=received.body)
    verify_webhook([Secret(one) for one in secrets], callback, NOW_MS)


async def test_an_event_is_posted_with_its_signature_and_headers(server: FaultServer) -> None:
    sink, event = a_sink(server.url, headers={"Authorization": "Bearer x"}), an_event(1)
    await sink.open()
    await sink.publish([event])
    await sink.close()
    (received,) = server.received
    assert (received.method, received.path) == ("POST", "/events?key=hidden")
    assert received.body == event_body(event)
    verify(received, NEW)
    with pytest.raises(CallbackRefused):
        verify(received, OLD)
    wanted = {
        "content-type": "application/json", "webhook-id": "e-1", "authorization": "Bearer x",
        "homing-event-type": STATUS_CHANGED, "homing-notification-id": "n-1", "homing-reason": "NO_ROUTE",
    }  # fmt: skip
    assert wanted.items() <= received.headers.items()


async def test_while_a_secret_is_replaced_receivers_may_have_either_one(server: FaultServer) -> None:
    sink = a_sink(server.url, secrets=[OLD])
    await sink.publish([an_event(1)])
    await sink.close()
    for secret in (OLD, NEW):
        verify(server.received[0], secret)


async def test_events_of_a_notification_follow_one_another_and_others_overlap(server: FaultServer) -> None:
    events = [an_event(number, number % 5) for number in range(60)] + [
        an_alert(number) for number in range(20)
    ]
    sink = a_sink(server.url, max_in_flight=4)
    await sink.publish(events)
    await sink.close()
    assert {one.key for one in server.received} == {event.id for event in events}
    assert len(server.received) == 80
    by_notification = defaultdict(list)
    for one in server.received:
        body = json.loads(one.body)
        if "notificationId" in body:
            by_notification[body["notificationId"]].append(one.key)
    for number in range(5):
        assert by_notification[f"n-{number}"] == [f"e-{place}" for place in range(number, 60, 5)]
    assert 1 < server.connections <= 4


@pytest.mark.parametrize("status", [400, 413, 418, 422, 500, 501])
async def test_a_refused_event_is_reported_and_only_its_notification_waits(status: int) -> None:
    def script(received: ReceivedRequest) -> ServerAction:
        return answer(status) if received.key == "e-1" else OK

    async with FaultServer(script) as server:
        sink = a_sink(server.url)
        with pytest.raises(EventsRefused, match=f"{status}: the endpoint refuses the event") as caught:
            await sink.publish([an_event(0), an_event(1), an_event(2), an_event(3, 1)])
        await sink.close()
    assert caught.value.refused == {"e-1"}
    assert caught.value.published == {"e-0", "e-2"}
    assert server.times("e-3") == 0


async def test_an_endpoint_that_refuses_everything_is_not_asked_for_every_event() -> None:
    async with FaultServer(otherwise=answer(400)) as server:
        sink = a_sink(server.url, max_in_flight=1)
        with pytest.raises(EventsRefused):
            await sink.publish([an_event(number) for number in range(200)])
        await sink.close()
    assert len(server.received) == 8


@pytest.mark.parametrize(
    ("act", "message", "wait_ms"),
    [
        (answer(401), "401: the endpoint asks for credentials", None),
        (answer(403), "403: the endpoint refuses us", None),
        (answer(404), "404: the endpoint does not exist", None),
        (answer(410), "410: the endpoint is gone; change url, or remove the sink", 600_000),
        (answer(301, headers={"location": "http://127.0.0.1/"}), "301: the endpoint redirects", None),
        (answer(408), "408: the endpoint is busy", None),
        (throttle("90"), "429: the endpoint is busy", 90_000),
        (throttle("Thu, 09 Oct 2025 08:54:20 GMT", 503), "503: the endpoint is busy", 60_000),
        (throttle("nonsense", 503), "503: the endpoint is busy", None),
        (html_page(502), "502: the endpoint is busy", None),
        (RESET_AFTER_READING, "dropped", None),
    ],
)
async def test_a_problem_of_the_endpoint_stops_the_round_and_keeps_what_was_taken(
    act: ServerAction, message: str, wait_ms: int | None
) -> None:
    def script(received: ReceivedRequest) -> ServerAction:
        return act if received.key == "e-1" else OK

    async with FaultServer(script) as server:
        sink = a_sink(server.url, max_in_flight=1)
        with pytest.raises(SinkUnavailable, match=message) as caught:
            await sink.publish([an_event(number) for number in range(9)])
        await sink.close()
    assert caught.value.published == {"e-0"}
    assert caught.value.retry_after_ms == wait_ms
    assert len(server.received) == 2
    assert "hidden" not in str(caught.value)


async def test_an_endpoint_that_hangs_or_is_away_ends_with_the_timeout(server: FaultServer) -> None:
    server.play(HANG_AFTER_READING)
    sink = a_sink(server.url, timeout_ms=200)
    with pytest.raises(SinkUnavailable, match="timeout"):
        await asyncio.wait_for(sink.publish([an_event(1)]), 60)
    await sink.close()
    sink = a_sink(refusing_url())
    with pytest.raises(SinkUnavailable, match="connect"):
        await sink.publish([an_event(1)])
    await sink.close()


async def test_private_addresses_are_refused_unless_the_settings_allow_them(server: FaultServer) -> None:
    sink = a_sink(server.url, transport=transport(allow=False))
    with pytest.raises(SinkUnavailable, match="refused_address"):
        await sink.publish([an_event(1)])
    with pytest.raises(SinkUnavailable, match="refused_address") as caught:
        await sink.diagnose()
    assert (caught.value.advice or "").startswith("use https:// and a public address, or set ")
    await sink.close()
    assert server.connections == 0


async def test_diagnose_posts_nothing(server: FaultServer) -> None:
    assert "127.0.0.1 answers" in await a_sink(server.url).diagnose()
    assert [one.method for one in server.received] == ["HEAD"]
    for only_post in (405, 501):
        server.play(answer(only_post))
        assert "127.0.0.1 answers" in await a_sink(server.url).diagnose()
    server.play(answer(410))
    with pytest.raises(SinkUnavailable, match="410: the endpoint is gone"):
        await a_sink(server.url).diagnose()
    server.play(answer(503))
    with pytest.raises(SinkUnavailable, match="503"):
        await a_sink(server.url).diagnose()


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"url": "ftp://example.org"}, "url"),
        ({"url": "https://user:password@example.org/"}, "url"),
        ({"url": "https://[::1/"}, "url"),
        ({"url": ""}, "url"),
        ({"secret": ""}, "secret"),
        ({"secret": "whsec_!"}, "secret"),
        ({"secret": "whpk_" + b64encode(bytes(32)).decode()}, "secret"),
        ({"headers": {"webhook-id": "x"}}, "headers.webhook-id"),
        ({"headers": {"Homing-Tenant": "x"}}, "headers.Homing-Tenant"),
        ({"headers": {"x": "a\nb"}}, "headers.x"),
        ({"timeout_ms": 20_000}, "timeout_ms"),
        ({"max_in_flight": 0}, "max_in_flight"),
        ({"max_in_flight": 1_000}, "max_in_flight"),
    ],
)
def test_a_wrong_setting_is_named_without_its_value(options: dict[str, Any], field: str) -> None:
    given: dict[str, Any] = {"url": "https://example.org/", "secret": NEW, **options}
    with pytest.raises(ConfigError) as caught:
        WebhookSink(None, now_ms=lambda: NOW_MS, **given)  # type: ignore[arg-type]
    assert caught.value.field == field
    assert "password" not in str(caught.value)


async def test_dead_letters_reach_a_configured_webhook(
    server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENTS_SECRET", NEW)
    (tmp_path / "url").write_text(f"{server.url}/from-homing\n")
    file = tmp_path / "homing.toml"
    file.write_text(
        f"""
        store = "{tmp_path / "homing.db"}"
        [http]
        allow_http = true
        allow_networks = ["127.0.0.0/8"]
        [sinks.backend]
        kind = "webhook"
        url = "file:{tmp_path / "url"}"
        secret = "env:EVENTS_SECRET"
        """
    )
    settings = load_settings(file)
    assert compose.build_sinks(settings)["backend"].durable
    refuses = ScriptedProvider(usual=OutcomeKind.BAD_RECIPIENT)
    async with Homing(loaded_settings=settings, providers={"refuses": refuses}) as homing:
        sent = await homing.send("nobody@example.org", channel="email", body="Anybody there?")
        await homing.process()
        await server.wait_for_requests(1)
    (received,) = server.received
    body = json.loads(received.body)
    assert (body["eventType"], body["notificationId"]) == (NOTIFICATION_FAILED, sent.id)
    assert received.path == "/from-homing"
