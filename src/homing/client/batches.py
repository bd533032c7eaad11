"""Many requests through the batch endpoint: one call for a few, streaming for any number."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from homing.client.calling import AsyncCalling, Calling
from homing.client.structs.batch import BatchItem, BatchResult
from homing.core.request import SendRequest

_PATH = "/api/v1/notifications/batch"
_NDJSON = "application/x-ndjson"
_CHUNK = 500
_CHUNK_BYTES = 8 * 1024 * 1024
_ENCODER = msgspec.json.Encoder()


class _Chunk:
    """Requests that go together: as many as are worth a call, and not too large."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self._size = 0

    def takes(self, line: bytes) -> bool:
        """Takes one more; False: it is full, and is to be sent first."""
        if self.lines and (len(self.lines) >= _CHUNK or self._size + len(line) > _CHUNK_BYTES):
            return False
        self.lines.append(line)
        self._size += len(line) + 1
        return True


class Batches(Calling):
    """Each request is accepted or rejected by itself. All have idempotency keys, made where none is given."""

    def send_batch(self, requests: Sequence[SendRequest]) -> BatchResult:
        """Up to 10,000 requests in one call."""
        return self._batch([_ENCODER.encode(one) for one in requests])

    def send_many(self, requests: Iterable[SendRequest]) -> Iterator[BatchItem]:
        """Any number of requests, in bounded memory: what became of each, in their order."""
        chunk, first = _Chunk(), 0
        for request in requests:
            line = _ENCODER.encode(request)
            if not chunk.takes(line):
                yield from _shifted(self._batch(chunk.lines), first)
                first += len(chunk.lines)
                chunk = _Chunk()
                chunk.takes(line)
        if chunk.lines:
            yield from _shifted(self._batch(chunk.lines), first)

    def _batch(self, lines: Sequence[bytes]) -> BatchResult:
        body = b"\n".join(lines)
        return self._ask(BatchResult, "POST", _PATH, body=body, keyed=True, content_type=_NDJSON)


class AsyncBatches(AsyncCalling):
    """The same for asyncio."""

    async def send_batch(self, requests: Sequence[SendRequest]) -> BatchResult:
        """Up to 10,000 requests in one call."""
        return await self._batch([_ENCODER.encode(one) for one in requests])

    async def send_many(
        self, requests: Iterable[SendRequest] | AsyncIterable[SendRequest]
    ) -> AsyncIterator[BatchItem]:
        """Any number of requests, in bounded memory: what became of each, in their order."""
        chunk, first = _Chunk(), 0
        async for request in _each(requests):
            line = _ENCODER.encode(request)
            if not chunk.takes(line):
                for item in _shifted(await self._batch(chunk.lines), first):
                    yield item
                first += len(chunk.lines)
                chunk = _Chunk()
                chunk.takes(line)
        if chunk.lines:
            for item in _shifted(await self._batch(chunk.lines), first):
                yield item

    async def _batch(self, lines: Sequence[bytes]) -> BatchResult:
        body = b"\n".join(lines)
        return await self._ask(BatchResult, "POST", _PATH, body=body, keyed=True, content_type=_NDJSON)


def _shifted(result: BatchResult, first: int) -> Iterator[BatchItem]:
    """Counted from the first request of all."""
    return (replace(item, index=first + item.index) for item in result.results)


async def _each(requests: Iterable[SendRequest] | AsyncIterable[SendRequest]) -> AsyncIterator[SendRequest]:
    if isinstance(requests, AsyncIterable):
        async for request in requests:
            yield request
    else:
        for request in requests:
            yield request
