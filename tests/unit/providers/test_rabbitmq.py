"""RabbitMQ messages: addresses, bodies, headers, and the outcome of each result of a publish."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homing.brokers.rabbitmq import BrokerUnavailable
from homing.brokers.rabbitmq_publisher import OutgoingMessage, PublishResult, PublishStatus
from homing.core.errors import ConfigError
from homing.core.notifications import Channel, Content, OutcomeKind
from homing.core.ports.providers import Delivery
from homing.providers.common.http_provider import Unsendable
from homing.providers.rabbitmq.provider import (
    RabbitMqProvider,
    build_body,
    build_headers,
    classify,
    parse_address,
)
from homing.testing.provider_suite import NOW_MS, a_delivery

K = OutcomeKind
S = PublishStatus


def delivery(address: str = "orders", **fields: Any) -> Delivery:
    return a_delivery(Channel.QUEUE, address, **fields)


def provider(**options: Any) -> RabbitMqProvider:
    return RabbitMqProvider(url="amqp://127.0.0.1:1/", **options)


@pytest.mark.parametrize(
    ("address", "exchange", "routing_key"),
    [
        ("orders", "", "orders"),
        ("orders/retry: 1", "", "orders/retry: 1"),
        ("queue://orders%20retry", "", "orders retry"),
        ("queue://exchange://x", "", "exchange://x"),
        ("exchange://events/order.created", "events", "order.created"),
        ("exchange://events/", "events", ""),
        ("exchange://a%2Fb/c/d%25", "a/b", "c/d%"),
    ],
)
def test_an_address_is_a_queue_or_an_exchange(address: str, exchange: str, routing_key: str) -> None:
    assert parse_address(address) == (exchange, routing_key)


@pytest.mark.parametrize(
    "address", ["", "queue://", "exchange://", "exchange:///key", "exchange://name", "q" * 256, "é" * 128]
)
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(Unsendable) as caught:
        parse_address(address)
    assert (caught.value.outcome.kind, caught.value.outcome.error_code) == (K.BAD_RECIPIENT, "address")


@given(st.binary(max_size=200))
def test_a_payload_is_sent_byte_for_byte(payload: bytes) -> None:
    content = Content(data={"payload": base64.b64encode(payload).decode()})
    assert build_body(content) == (payload, "application/octet-stream")


def test_other_data_are_json_and_texts_are_text() -> None:
    assert build_body(Content(data={"payload": "AA==", "n": 1}))[0] == b'{"payload":"AA==","n":1}'
    assert build_body(Content(data={"payload": 7})) == (b'{"payload":7}', "application/json")
    assert build_body(Content(body="Grüße", text="no")) == ("Grüße".encode(), "text/plain; charset=utf-8")
    assert build_body(Content(text="text"))[0] == b"text"


@pytest.mark.parametrize("payload", ["no base64!", "AAA", "AA==\n", "é"])
def test_a_payload_that_is_not_base64_is_refused(payload: str) -> None:
    with pytest.raises(Unsendable) as caught:
        build_body(Content(data={"payload": payload}))
    assert caught.value.outcome.kind is K.BAD_CONTENT


def test_the_headers_identify_the_task_and_count_this_retry() -> None:
    metadata = {"message_id": "task-7", "retry_count": 2, "error_reason": "down", "traceparent": "00-a-b-01"}
    one = delivery(metadata=metadata)
    assert build_headers(one) == {
        "x-homing-message-id": "task-7",
        "x-homing-notification-id": one.notification_id,
        "x-homing-retry-count": 3,
        "x-homing-reason": "down",
        "traceparent": "00-a-b-01",
    }


def test_without_metadata_the_notification_s_id_identifies_the_message() -> None:
    one = delivery()
    assert build_headers(one) == {
        "x-homing-message-id": one.notification_id,
        "x-homing-notification-id": one.notification_id,
    }


def test_strange_metadata_are_left_out_and_long_ones_are_cut() -> None:
    metadata = {"message_id": 7, "retry_count": True, "error_reason": "é" * 5_000}
    headers = build_headers(delivery(metadata=metadata))
    assert "x-homing-retry-count" not in headers
    assert headers["x-homing-reason"] == "é" * 512
    assert build_headers(delivery(metadata={"retry_count": -1})).keys() == build_headers(delivery()).keys()


def test_the_settings_and_the_expiry_become_properties() -> None:
    built = provider(content_type="application/x-task", priority=3, expiration_ms=60_000).build(
        delivery(expires_at=NOW_MS + 5_000), NOW_MS
    )
    assert (built.content_type, built.priority, built.expiration_ms) == ("application/x-task", 3, 5_000)
    assert provider(expiration_ms=60_000).build(delivery(), NOW_MS).expiration_ms == 60_000
    assert provider().build(delivery(), NOW_MS).expiration_ms is None
    assert provider().build(delivery(expires_at=NOW_MS - 1), NOW_MS).expiration_ms == 0


@pytest.mark.parametrize(
    "options",
    [
        {"priority": 256},
        {"priority": -1},
        {"expiration_ms": 2**32},
        {"content_type": "é"},
        {"content_type": "x" * 256},
    ],
)
def test_impossible_settings_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        provider(**options)


@pytest.mark.parametrize(
    ("status", "code", "kind", "uncounted"),
    [
        (S.RETURNED, "no_route", K.BAD_RECIPIENT, False),
        (S.REFUSED, "not_found", K.BAD_RECIPIENT, False),
        (S.REFUSED, "too_large", K.BAD_CONTENT, False),
        (S.REFUSED, "unencodable", K.BAD_CONTENT, False),
        (S.REFUSED, "refused", K.BAD_CONTENT, False),
        (S.REFUSED, "forbidden", K.PROVIDER_FAULT, True),
        (S.NACKED, "nacked", K.THROTTLED, True),
        (S.AWAY, "unreachable", K.TRANSIENT, True),
        (S.AWAY, "no_answer", K.TRANSIENT, True),
        (S.AWAY, "blocked", K.TRANSIENT, True),
        (S.AWAY, "busy", K.TRANSIENT, True),
        (S.AWAY, "login", K.PROVIDER_FAULT, True),
        (S.AWAY, "vhost", K.PROVIDER_FAULT, True),
        (S.AWAY, "tls", K.PROVIDER_FAULT, True),
        (S.AMBIGUOUS, "timeout", K.AMBIGUOUS, True),
        (S.AMBIGUOUS, "confirm_lost", K.AMBIGUOUS, True),
    ],
)
def test_each_result_has_its_outcome(
    status: PublishStatus, code: str, kind: OutcomeKind, uncounted: bool
) -> None:
    message = OutgoingMessage(body=b"", routing_key="orders")
    outcome = classify(PublishResult(status, code, "what happened"), message)
    assert (outcome.kind, outcome.error_code, outcome.uncounted) == (kind, code, uncounted)
    assert (outcome.error, outcome.unlisted) == ("what happened", False)


def test_an_exchange_without_permission_concerns_its_address_alone() -> None:
    message = OutgoingMessage(body=b"", exchange="events", routing_key="")
    outcome = classify(PublishResult(S.REFUSED, "forbidden", "no"), message)
    assert (outcome.kind, outcome.error_code) == (K.BAD_RECIPIENT, "forbidden_exchange")


async def test_a_server_that_is_not_there_is_a_transient_failure_that_does_not_count() -> None:
    absent = provider()
    outcome = await absent.send(delivery(timeout_ms=2_000))
    assert (outcome.kind, outcome.error_code, outcome.uncounted) == (K.TRANSIENT, "unreachable", True)
    with pytest.raises(BrokerUnavailable, match="Connection refused"):
        await absent.check()
    assert (await absent.send(delivery("exchange://"))).kind is K.BAD_RECIPIENT
    await absent.close()
