"""The sink that appends events to a Redis stream, alone and behind the relay of an engine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from homing import ConfigError, Homing
from homing.brokers.redis import RedisFailure
from homing.core.lifecycle.events import Event
from homing.sinks.redis import RedisSink
from support.redis_server import RedisServer, skip_if_no_redis

STREAM = "homing:events"
SETTINGS = """\
store = "homing.db"
[sinks.redis]
url = "{url}"
events = ["StatusChanged", "NotificationFailed"]
[providers.p]
kind = "scripted"
usual = "bad_content"
"""


def event(number: int, **more: Any) -> Event:
    payload = {"eventType": "NotificationFailed", "reason": "RETRIES_EXHAUSTED", "number": number}
    return Event(
        id=f"event-{number}", name="NotificationFailed", tenant="acme", at=number, payload=payload, **more
    )


async def test_events_are_appended_in_order_with_headers_and_body(redis_server: RedisServer) -> None:
    sink = RedisSink(redis_server.url)
    await sink.open()
    await sink.publish([event(n, notification_id=f"n-{n}") for n in range(300)])
    await sink.publish([event(300)])
    await sink.close()
    found = await redis_server.read_stream(STREAM)
    assert [fields[b"homing-event-id"] for fields in found] == [f"event-{n}".encode() for n in range(301)]
    first = found[0]
    assert msgspec.json.decode(first.pop(b"body"))["eventId"] == "event-0"
    assert first == {
        b"homing-event-id": b"event-0",
        b"homing-event-type": b"NotificationFailed",
        b"homing-schema-version": b"1",
        b"homing-tenant": b"acme",
        b"homing-notification-id": b"n-0",
        b"homing-reason": b"RETRIES_EXHAUSTED",
    }


@pytest.mark.parametrize("rights", ["publish-events-to-redis.md"], indirect=True)
async def test_the_rights_in_the_how_to_are_enough_for_the_sink(
    redis_server: RedisServer, rights: list[str]
) -> None:
    async with redis_server.client() as client:
        await client.execute_command("ACL", "SETUSER", *rights)
    sink = RedisSink(redis_server.url, username="homing", password="PASSWORD")
    await sink.open()
    await sink.publish([event(1), event(2)])
    await sink.close()
    assert len(await redis_server.read_stream(STREAM)) == 2


async def test_the_length_of_the_stream_is_bounded(redis_server: RedisServer) -> None:
    sink = RedisSink(redis_server.url, max_length=200)
    await sink.open()
    for first in range(0, 2_000, 200):
        await sink.publish([event(n) for n in range(first, first + 200)])
    await sink.close()
    found = await redis_server.read_stream(STREAM)
    assert 200 <= len(found) <= 400, "Redis removes whole blocks of entries"
    assert found[-1][b"homing-event-id"] == b"event-1999"


async def test_a_batch_that_redis_refuses_is_appended_as_a_whole_or_not_at_all() -> None:
    with skip_if_no_redis():
        server = RedisServer("--maxmemory", "3mb", "--maxmemory-policy", "noeviction")
    with server:
        sink = RedisSink(server.url)
        await sink.open()
        sent = 0

        async def publish_until_full() -> None:
            nonlocal sent
            while True:
                await sink.publish([event(n, notification_id="x" * 5_000) for n in range(sent, sent + 20)])
                sent += 20

        with pytest.raises(RedisFailure, match="is out of memory"):
            await publish_until_full()
        await sink.close()
        assert len(await server.read_stream(STREAM)) == sent


async def test_while_redis_is_down_events_wait_and_are_published_later(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = tmp_path / "homing.toml"
    settings.write_text(SETTINGS.format(url=redis_server.url))
    async with Homing(config_file=settings, worker=True) as homing:
        redis_server.kill()
        ids = [(await homing.send("ada@example.org", channel="email", body="Hi")).id for _ in range(3)]
        for id in ids:
            await homing.wait(id)
        await asyncio.sleep(1.5)  # the relay has tried, without success
        redis_server.start()
        failed: set[bytes] = set()
        async with asyncio.timeout(60):
            while len(failed) < 3:
                await asyncio.sleep(0.1)
                failed = {
                    fields[b"homing-notification-id"]
                    for fields in await redis_server.read_stream(STREAM)
                    if fields[b"homing-event-type"] == b"NotificationFailed"
                }
        assert failed == {id.encode() for id in ids}


def test_settings_of_the_sink_are_checked() -> None:
    for options in ({"stream": ""}, {"max_length": 0}, {"stream": "x" * 300}):
        with pytest.raises(ConfigError):
            RedisSink(**options)
