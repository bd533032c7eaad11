"""The Azure Service Bus sink against a server that follows its public description, over TLS."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from homing import compose
from homing.core.errors import ConfigError, EventsRefused, SinkUnavailable
from homing.core.lifecycle.events import NOTIFICATION_FAILED, STATUS_CHANGED, Event, event_body
from homing.net.http_client import CurlTransport
from homing.net.secrets import Secret
from homing.settings import load_settings
from homing.sinks.servicebus import ConnectionString, ServiceBusSink, create_sas_token
from homing.testing.fault_server import HANG_AFTER_READING, RESET_AFTER_READING, answer, html_page, throttle
from support.service_bus_server import HOST, KEY, ServiceBusServer
from support.vector_files import vectors

NOW_MS = 1_760_000_000_000


class Clock:
    def __init__(self) -> None:
        self.now = NOW_MS

    def __call__(self) -> int:
        return self.now


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> str:
    file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(file))
    return str(file)


@pytest.fixture
async def server(authority: trustme.CA) -> AsyncIterator[ServiceBusServer]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    async with ServiceBusServer(context, NOW_MS) as made:
        yield made


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def sink(server: ServiceBusServer, ca_file: str, clock: Clock) -> AsyncIterator[ServiceBusSink]:
    made = a_sink(server, ca_file, clock)
    await made.open()
    yield made
    await made.close()


def a_sink(server: ServiceBusServer, ca_file: str, clock: Clock, **options: Any) -> ServiceBusSink:
    options = {"connection_string": server.connection_string(), "base_url": server.url, **options}
    return ServiceBusSink(CurlTransport(ca_file=ca_file), now_ms=clock, **options)


def failed(number: int, notification: int | None = None, size: int = 0, **more: Any) -> Event:
    about = f"n-{number if notification is None else notification}"
    payload = {"eventType": NOTIFICATION_FAILED, "notificationId": about, "lastError": "é" + "x" * size}
    return Event(
        id=f"{about}:{number}", name=NOTIFICATION_FAILED, tenant="default", at=0,
        notification_id=about, payload={**payload, "reason": "RETRIES_EXHAUSTED", **more},
    )  # fmt: skip


@pytest.mark.parametrize("case", vectors("azure_servicebus_sas")["cases"], ids=lambda case: case["uri"])
def test_tokens_are_those_of_the_official_library(case: dict[str, Any]) -> None:
    token = create_sas_token(case["uri"], case["policy"], Secret(case["key"]), case["expiry"])
    assert token == case["token"]


@pytest.mark.source("002", "453-454")
async def test_a_dead_letter_becomes_a_message_with_the_fields_of_the_source(
    server: ServiceBusServer, sink: ServiceBusSink
) -> None:
    event = failed(1)
    await sink.publish([event])
    (message,) = server.messages
    assert message["Body"].encode() == event_body(event)
    assert message["BrokerProperties"] == {
        "MessageId": "n-1:1", "Label": NOTIFICATION_FAILED, "CorrelationId": "n-1"
    }  # fmt: skip
    assert message["UserProperties"]["homing-reason"] == "RETRIES_EXHAUSTED"
    assert server.received[0].headers["content-type"] == "application/json"


async def test_many_events_are_one_request_in_order(server: ServiceBusServer, sink: ServiceBusSink) -> None:
    events = [failed(number, number % 7) for number in range(50)]
    await sink.publish(events)
    assert server.ids == [event.id for event in events]
    assert [message["Body"].encode() for message in server.messages] == [event_body(one) for one in events]
    assert len(server.received) == 1


async def test_batches_are_limited_by_size(server: ServiceBusServer, sink: ServiceBusSink) -> None:
    events = [failed(number, size=30_000) for number in range(20)]
    await sink.publish(events)
    assert server.ids == [event.id for event in events]
    assert max(len(one.body) for one in server.received) <= 200_000
    assert 3 <= len(server.received) <= 6


async def test_a_batch_that_is_refused_is_sent_one_by_one_and_only_the_refused_event_is_reported(
    server: ServiceBusServer, sink: ServiceBusSink
) -> None:
    server.refused_ids = {"n-2:2"}
    with pytest.raises(EventsRefused) as caught:
        await sink.publish([failed(1), failed(2), failed(3), failed(4, 2), failed(5)])
    assert caught.value.refused == {"n-2:2"}
    assert caught.value.published == {"n-1:1", "n-3:3", "n-5:5"}, "an event of n-2 waits for the refused one"
    assert server.ids == ["n-1:1", "n-3:3", "n-5:5"]


async def test_a_message_that_is_too_large_is_refused_alone(
    server: ServiceBusServer, sink: ServiceBusSink
) -> None:
    with pytest.raises(EventsRefused, match="too large") as caught:
        await sink.publish([failed(1), failed(2, size=300_000), failed(3)])
    assert caught.value.refused == {"n-2:2"}
    assert server.ids == ["n-1:1", "n-3:3"]


async def test_sessions_keep_the_order_and_batches_that_mix_sessions_are_given_up(
    server: ServiceBusServer, ca_file: str, clock: Clock
) -> None:
    server.sessions = True
    sink = a_sink(server, ca_file, clock, sessions=True)
    await sink.publish([failed(number, number % 2) for number in range(4)])
    assert [one["BrokerProperties"]["SessionId"] for one in server.messages] == ["n-0", "n-1", "n-0", "n-1"]
    assert server.statuses == [400, 201, 201, 201, 201]
    await sink.publish([failed(number, number % 2) for number in range(4, 8)])
    assert server.statuses[5:] == [201] * 4, "no further batch is tried"
    await sink.close()


async def test_a_repeated_event_is_recognized_by_its_id(
    server: ServiceBusServer, sink: ServiceBusSink
) -> None:
    server.play(RESET_AFTER_READING)
    with pytest.raises(SinkUnavailable, match="dropped"):
        await sink.publish([failed(1), failed(2)])
    for _ in range(2):
        await sink.publish([failed(1), failed(2)])
    assert server.ids == ["n-1:1", "n-2:2"]


async def test_a_token_is_kept_until_it_is_about_to_expire(
    server: ServiceBusServer, sink: ServiceBusSink, clock: Clock
) -> None:
    for minutes in (0, 45, 4, 2, 55):
        clock.now += minutes * 60_000
        server.now_ms = clock.now
        await sink.publish([failed(1)])
    tokens = [one.headers["authorization"] for one in server.received]
    assert set(server.statuses) == {201}
    assert len(set(tokens)) == 3
    assert tokens[0] == tokens[1] == tokens[2]
    clock.now = server.now_ms = NOW_MS  # the clock was set back, so the token would be valid for too long
    await sink.publish([failed(1)])
    assert server.received[-1].headers["authorization"] == tokens[0]


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (answer(401), "401: the token was refused"),
        (answer(403), "403: the quota of alerts is exceeded"),
        (answer(404), "404: there is no queue or topic alerts"),
        (answer(410), "410: there is no queue or topic alerts"),
        (throttle("7"), "429: the server is busy"),
        (answer(500), "500: the server is busy"),
        (throttle("7", 503), "503: the server is busy"),
        (html_page(302), "302: the answer is not one of Azure Service Bus"),
    ],
)
async def test_an_answer_about_the_whole_queue_makes_the_sink_unavailable(
    server: ServiceBusServer, sink: ServiceBusSink, act: Any, message: str
) -> None:
    server.play(act)
    with pytest.raises(SinkUnavailable, match=message) as caught:
        await sink.publish([failed(1), failed(2)])
    assert caught.value.retry_after_ms == (7_000 if b"retry-after" in act.writes else None)
    assert len(server.received) == 1
    assert server.messages == []


async def test_wrong_keys_and_clocks_are_refused_and_recovered_from(
    server: ServiceBusServer, sink: ServiceBusSink
) -> None:
    server.keys["send-only"] = "rotated"
    with pytest.raises(SinkUnavailable, match="check the key, the policy and the clock") as caught:
        await sink.publish([failed(1)])
    assert KEY not in str(caught.value)
    server.keys["send-only"] = KEY
    await sink.publish([failed(1)])
    server.now_ms = NOW_MS + 2 * 3_600_000
    with pytest.raises(SinkUnavailable, match="401"):
        await sink.publish([failed(2)])


async def test_headers_of_single_messages_survive_any_text(
    server: ServiceBusServer, sink: ServiceBusSink
) -> None:
    event = Event(
        id="e-1", name="Alert", tenant='t"é\n😀', at=0, payload={"eventType": "Alert", "alert": "Ü"}
    )
    await sink.publish([event])
    (message,) = server.messages
    assert message["UserProperties"]["homing-tenant"] == 't"é\n😀'
    assert json.loads(message["Body"])["alert"] == "Ü"


async def test_the_trace_context_has_the_name_that_azure_uses(
    server: ServiceBusServer, sink: ServiceBusSink
) -> None:
    traced = Event(
        id="e", name=STATUS_CHANGED, tenant="t", at=0, notification_id="n", traceparent="00-a-b-01"
    )
    await sink.publish([traced])
    properties = server.messages[0]["UserProperties"]
    assert properties["traceparent"] == "00-a-b-01"
    assert properties.get("diagnostic-id", properties.get("Diagnostic-Id")) == "00-a-b-01"


async def test_a_server_that_hangs_ends_with_the_timeout(
    server: ServiceBusServer, ca_file: str, clock: Clock
) -> None:
    server.play(HANG_AFTER_READING)
    sink = a_sink(server, ca_file, clock, timeout_ms=200)
    with pytest.raises(SinkUnavailable, match="timeout"):
        await asyncio.wait_for(sink.publish([failed(1)]), 60)
    await sink.close()


# Settings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("secret-text", "is not a list of NAME=VALUE"),
        ("SharedAccessKeyName=a;SharedAccessKey=b", "has no Endpoint"),
        ("Endpoint=ftp://x/;SharedAccessKeyName=a;SharedAccessKey=b", "has no Endpoint"),
        ("Endpoint=sb://[::1/;SharedAccessKeyName=a;SharedAccessKey=b", "has no Endpoint"),
        (f"Endpoint=sb://{HOST}/;SharedAccessKeyName=a", "has no SharedAccessKeyName and SharedAccessKey"),
        (f"Endpoint=sb://{HOST}/;SharedAccessSignature=x", "has no SharedAccessKeyName and SharedAccessKey"),
    ],
)
def test_a_wrong_connection_string_is_refused_without_showing_it(given: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        ConnectionString.parse(Secret(given))
    assert "secret-text" not in str(caught.value)


def test_the_parts_of_a_connection_string_may_have_any_order_and_case() -> None:
    found = ConnectionString.parse(
        Secret(f" sharedaccesskey=a=b==;ENDPOINT=sb://{HOST.upper()}:5671/;SharedAccessKeyName=p; ")
    )
    assert (found.host, found.policy, found.key.reveal(), found.entity) == (HOST, "p", "a=b==", "")


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"connection_string": f"Endpoint=sb://{HOST}/;SharedAccessKeyName=p;SharedAccessKey=k"}, "entity"),
        ({"entity": "other"}, "entity"),
        ({"entity": "a/../b", "connection_string": ""}, "connection_string"),
        ({"max_batch_bytes": 10}, "max_batch_bytes"),
        ({"timeout_ms": 0}, "timeout_ms"),
        ({"timeout_ms": 60_000}, "timeout_ms"),
        ({"base_url": "https://x/?a=b"}, "base_url"),
    ],
)
def test_a_wrong_setting_is_named(options: dict[str, Any], field: str) -> None:
    given = f"Endpoint=sb://{HOST}/;SharedAccessKeyName=p;SharedAccessKey=k;EntityPath=alerts"
    with pytest.raises(ConfigError) as caught:
        ServiceBusSink(None, now_ms=Clock(), **{"connection_string": given, **options})  # type: ignore[arg-type]
    assert caught.value.field == field


def test_the_sink_is_configured_by_its_connection_string_alone_and_gets_dead_letters_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "BUS", f"Endpoint=sb://{HOST}/;SharedAccessKeyName=p;SharedAccessKey=k;EntityPath=alerts"
    )
    file = tmp_path / "homing.toml"
    file.write_text('[sinks.servicebus]\nconnection_string = "env:BUS"\n')
    sinks = compose.build_sinks(load_settings(file))
    assert sinks["servicebus"].events == {NOTIFICATION_FAILED}
    assert sinks["servicebus"].durable
    assert sinks["log"].events == {NOTIFICATION_FAILED, "Alert"}
    file.write_text('[sinks.servicebus]\nconnection_string = "env:BUS"\nevents = ["Alert"]\n')
    assert compose.build_sinks(load_settings(file))["servicebus"].events == {"Alert"}


async def test_diagnose_reaches_the_namespace_and_publishes_nothing(
    server: ServiceBusServer, ca_file: str, clock: Clock
) -> None:
    assert "only an event shows whether send-only may send to alerts" in (
        await a_sink(server, ca_file, clock).diagnose()
    )
    server.play(answer(404))
    with pytest.raises(SinkUnavailable, match="no queue or topic alerts"):
        await a_sink(server, ca_file, clock).diagnose()
    server.play(answer(401, headers={"date": "Wed, 01 Jan 2020 00:00:00 GMT"}))
    with pytest.raises(SinkUnavailable, match="clock differs from ours by"):
        await a_sink(server, ca_file, clock).diagnose()
    server.play(answer(503))
    with pytest.raises(SinkUnavailable, match="answers 503"):
        await a_sink(server, ca_file, clock).diagnose()
    await server.stop()
    with pytest.raises(SinkUnavailable, match="connect") as caught:
        await a_sink(server, ca_file, clock).diagnose()
    assert caught.value.advice == "start the other system, or correct its host and port"
    assert server.messages == []
