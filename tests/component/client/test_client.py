"""Both clients with a running service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from homing import Content, Listed, OutcomeKind, Recipient, SendRequest
from homing.client import AsyncClient, Client, Forbidden, ServiceRefused, Unauthorized
from homing.core.errors import CommandRefused, DeliveryFailed, IdempotencyConflict, InvalidRequest, NotFound
from homing.core.notifications import Channel, Status
from homing.providers.local.scripted import ScriptedProvider
from support.running_service import RunningService

Serve = Callable[..., RunningService]
ADA = Recipient(email="ada@example.org")
HELLO = Content(body="hello")
MAIL = SendRequest(recipient=ADA, channel="email", content=HELLO)


@pytest.fixture
def service(serve: Serve) -> RunningService:
    provider = ScriptedProvider("pigeon", [OutcomeKind.TRANSIENT])
    pigeon = Listed(id="pigeon", provider=provider, channels=(Channel.EMAIL,))
    return serve(store="memory:", providers={"pigeon": pigeon}, preset="simple")


def send(client: Client, **more: Any) -> str:
    sent = client.send_notification(recipient=ADA, channel="email", content=HELLO, **more)
    assert sent.notification_id is not None
    return sent.notification_id


def test_a_sent_notification_can_be_read_explained_and_cancelled(service: RunningService) -> None:
    with Client(service.url, "default") as client:
        id = send(client, type="order", metadata={"order": 5})
        found = client.get_notification(id)
        assert (found.status, found.recipient, found.metadata) == (Status.PENDING, ADA, {"order": 5})
        service.on_loop(lambda engine: engine.process())
        info = client.get_retry_info(id, max_attempts=5)
        assert (info.current_attempts, info.retries_remaining) == (1, 4)
        assert client.explain_notification(id).policy.max_attempts == 3
        assert [one.outcome for one in client.get_attempts(id).attempts] == ["transient"]
        assert [one.id for one in client.list_waiting().items] == [id]
        assert client.cancel_notification(id, why="typo").cancelled
        assert client.get_queue_counts()["cancelled"] == 1


def test_a_list_is_followed_to_its_end(service: RunningService) -> None:
    with Client(service.url, "default") as client:
        ids = {send(client, type="a") for _ in range(7)}
        send(client, type="b")
        found = [one.id for one in client.list_notifications(type="a", statuses=(Status.PENDING,), limit=3)]
        assert (len(found), set(found)) == (7, ids)


def test_any_number_is_sent_with_results_in_order(service: RunningService) -> None:
    wrong = SendRequest(recipient=ADA, channel="pigeon", content=HELLO)
    with Client(service.url, "default") as client:
        results = list(client.send_many(wrong if number == 777 else MAIL for number in range(1_234)))
        assert [one.index for one in results] == list(range(1_234))
        (refused,) = [one for one in results if one.status == "rejected"]
        assert (refused.index, refused.field, refused.code) == (777, "channel", "INVALID_REQUEST")
        assert client.get_queue_counts()["pending"] == 1_233
        assert client.send_batch([MAIL, wrong]).rejected == 1


async def test_requests_before_an_error_of_their_source_are_sent(service: RunningService) -> None:
    def source() -> Iterator[SendRequest]:
        yield from [MAIL] * 3
        raise OSError("the file ends here")

    async def later() -> AsyncIterator[SendRequest]:
        for one in source():
            yield one

    with Client(service.url, "default") as client:
        results = client.send_many(source())
        assert [next(results).status for _ in range(3)] == ["queued"] * 3
        with pytest.raises(OSError, match="ends here"):
            next(results)
    async with AsyncClient(service.url, "default") as later_client:
        for requests in (source(), later()):
            stream = later_client.send_many(requests)
            assert [(await anext(stream)).status for _ in range(3)] == ["queued"] * 3
            with pytest.raises(OSError, match="ends here"):
                await anext(stream)


def test_errors_are_those_of_the_engine_with_the_service_s_text(service: RunningService) -> None:
    with Client(service.url, "default") as client:
        with pytest.raises(NotFound) as missing:
            client.get_notification("nothing")
        assert isinstance(missing.value, ServiceRefused)
        assert (missing.value.status, missing.value.code) == (404, "NOT_FOUND")
        assert missing.value.request_id
        with pytest.raises(InvalidRequest) as invalid:
            client.send_notification(recipient=ADA, channel="pigeon", content=HELLO)
        assert (invalid.value.field, invalid.value.code) == ("channel", "INVALID_REQUEST")
        assert invalid.value.message.startswith("channel: is 'pigeon'; it must be one of")
        with pytest.raises(InvalidRequest) as malformed:
            client.list_pending(limit=0)
        assert (malformed.value.field, malformed.value.code) == ("limit", "MALFORMED_REQUEST")
        with pytest.raises(DeliveryFailed) as failed:
            send(client, synchronous=True)
        assert client.get_notification(failed.value.notification_id).status is Status.FAILED
        with pytest.raises(CommandRefused):
            client.cancel_notification(failed.value.notification_id)
    with Client(service.url, "") as nobody, pytest.raises(Unauthorized):
        nobody.get_queue_counts()
    with Client(service.url, "default:send") as sender, pytest.raises(Forbidden) as forbidden:
        sender.get_queue_counts()
    assert forbidden.value.status == 403


def test_a_given_idempotency_key_is_used_and_otherwise_one_is_created(service: RunningService) -> None:
    with Client(service.url, "default") as client:
        assert send(client, idempotency_key="order-1") == send(client, idempotency_key="order-1")
        assert send(client) != send(client)
        with pytest.raises(InvalidRequest, match="idempotencyKey: must have"):
            send(client, idempotency_key="two\nlines")
        with pytest.raises(IdempotencyConflict):
            send(client, idempotency_key="order-1", priority="high")


def test_threads_share_a_client_and_its_few_connections(service: RunningService) -> None:
    with Client(service.url, "default", connections=2) as client, ThreadPoolExecutor(8) as threads:
        ids = list(threads.map(lambda _: send(client), range(100)))
        assert len(set(ids)) == 100
        assert client.get_queue_counts()["pending"] == 100


async def test_the_async_client_does_the_same(service: RunningService) -> None:
    async with AsyncClient(service.url, "default", connections=4) as client:
        sent = await client.send_notification(recipient=ADA, channel="email", content=HELLO)
        assert sent.notification_id is not None
        assert (await client.get_notification(sent.notification_id)).status is Status.PENDING
        many = [one async for one in client.send_many([MAIL] * 600)]
        assert [one.index for one in many] == list(range(600))

        async def later() -> AsyncIterator[SendRequest]:
            for _ in range(3):
                yield MAIL

        assert [one.status async for one in client.send_many(later())] == ["queued"] * 3
        assert (await client.send_batch([MAIL])).accepted == 1
        found = [one.id async for one in client.list_notifications(limit=200)]
        assert len(set(found)) == 605
        with pytest.raises(NotFound):
            await client.get_notification("nothing")
        together = await asyncio.gather(*(client.get_queue_counts() for _ in range(20)))
        assert {one["pending"] for one in together} == {605}
