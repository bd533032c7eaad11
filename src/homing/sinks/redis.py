"""A sink that appends events to a Redis stream of bounded length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from homing.brokers.redis import DEFAULT_URL, RedisConnection, RedisLogin
from homing.core.errors import ConfigError
from homing.core.lifecycle.events import Event, event_body, event_headers
from homing.net.secrets import Secret

_LONGEST_NAME = 200

_MAX_LENGTH = 100_000_000


class RedisSink:
    """Appends each event to a stream: one field per header, and `body` with the JSON.

    Redis removes the oldest entries beyond `max_length`, also those that no consumer has read.
    """

    def __init__(
        self,
        url: str | Secret = DEFAULT_URL,
        *,
        stream: str = "homing:events",
        max_length: int = 100_000,
        **login: Unpack[RedisLogin],
    ) -> None:
        self._redis = RedisConnection(url, **login)
        if not stream or len(stream) > _LONGEST_NAME:
            raise ConfigError("stream", f"must have 1 to {_LONGEST_NAME} characters")
        if not 1 <= max_length <= _MAX_LENGTH:
            raise ConfigError("max_length", f"is {max_length}; it must be 1 to {_MAX_LENGTH}")
        self._stream = stream
        self._max_length = max_length

    async def open(self) -> None:
        """Connects, and raises `RedisFailure` if Redis cannot be used."""
        await self._redis.open()

    async def close(self) -> None:
        """Disconnects."""
        await self._redis.close()

    async def diagnose(self) -> str:
        """Describes the server."""
        return await self._redis.diagnose()

    async def publish(self, events: Sequence[Event]) -> None:
        """Appends the events in order, all or none. If the answer is lost, they are appended again later.

        Consumers recognize a repeated event by its field `homing-event-id`.
        """
        # A transaction: if Redis refused one event and took the next, their order would be lost.
        pipeline = self._redis.client.pipeline(transaction=True)
        for event in events:
            fields = {**event_headers(event), "body": event_body(event)}
            pipeline.xadd(self._stream, fields, maxlen=self._max_length, approximate=True)  # type: ignore[arg-type]
        with self._redis.translated():
            await pipeline.execute()
