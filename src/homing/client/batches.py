"""Sending many notifications through the batch endpoint, in one call or as a stream."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from homing.client.base import AsyncBase, SyncBase
from homing.core.send_request import SendRequest
from homing.wire.notifications import BatchItem, BatchResult

_PATH = "/api/v1/notifications/batch"
_NDJSON = "application/x-ndjson"
_CHUNK_REQUESTS = 500
_CHUNK_BYTES = 8 * 1024 * 1024
_ENCODER = msgspec.json.Encoder()


class _Chunk:
    """Encoded requests that are sent in one call, bounded in number and size."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self._size_bytes = 0

    def try_add(self, line: bytes) -> bool:
        """Adds a request and returns True, or returns False if the chunk is full."""
        is_full = len(self.lines) >= _CHUNK_REQUESTS or self._size_bytes + len(line) > _CHUNK_BYTES
        if self.lines and is_full:
            return False
        self.lines.append(line)
        self._size_bytes += len(line) + 1
        return True


class SyncBatches(SyncBase):
    """Sends many requests at a time. The service accepts or rejects each of them separately.

    Every request has an idempotency key: its own, or one derived from a key that the client creates.
    """

    def send_batch(self, requests: Sequence[SendRequest]) -> BatchResult:
        """Submit up to 10,000 send requests in one call."""
        return self._send([_ENCODER.encode(request) for request in requests])

    def send_many(self, requests: Iterable[SendRequest]) -> Iterator[BatchItem]:
        """Submit any number of send requests in bounded memory. Yields the result of each, in order."""
        chunk, first = _Chunk(), 0
        errors: list[Exception] = []
        for request in _until_error(requests, errors):
            line = _ENCODER.encode(request)
            if not chunk.try_add(line):
                yield from _with_offset(self._send(chunk.lines), first)
                first += len(chunk.lines)
                chunk = _Chunk()
                chunk.try_add(line)
        if chunk.lines:
            yield from _with_offset(self._send(chunk.lines), first)
        if errors:
            raise errors[0]

    def _send(self, lines: Sequence[bytes]) -> BatchResult:
        body = b"\n".join(lines)
        return self._request(BatchResult, "POST", _PATH, body=body, keyed=True, content_type=_NDJSON)


class AsyncBatches(AsyncBase):
    """The asyncio version of `SyncBatches`."""

    async def send_batch(self, requests: Sequence[SendRequest]) -> BatchResult:
        """Submit up to 10,000 send requests in one call."""
        return await self._send([_ENCODER.encode(request) for request in requests])

    async def send_many(
        self, requests: Iterable[SendRequest] | AsyncIterable[SendRequest]
    ) -> AsyncIterator[BatchItem]:
        """Submit any number of send requests in bounded memory. Yields the result of each, in order."""
        chunk, first = _Chunk(), 0
        errors: list[Exception] = []
        async for request in _each(requests, errors):
            line = _ENCODER.encode(request)
            if not chunk.try_add(line):
                for item in _with_offset(await self._send(chunk.lines), first):
                    yield item
                first += len(chunk.lines)
                chunk = _Chunk()
                chunk.try_add(line)
        if chunk.lines:
            for item in _with_offset(await self._send(chunk.lines), first):
                yield item
        if errors:
            raise errors[0]

    async def _send(self, lines: Sequence[bytes]) -> BatchResult:
        body = b"\n".join(lines)
        return await self._request(BatchResult, "POST", _PATH, body=body, keyed=True, content_type=_NDJSON)


def _with_offset(result: BatchResult, first: int) -> Iterator[BatchItem]:
    """Returns the items with indexes that count from the first request of all chunks."""
    return (replace(item, index=first + item.index) for item in result.results)


def _until_error(requests: Iterable[SendRequest], errors: list[Exception]) -> Iterator[SendRequest]:
    """Yields the requests, and adds an error that their iterable raises to `errors` instead of raising it.

    So the requests before the error are sent before it is raised.
    """
    try:
        yield from requests
    except Exception as error:
        errors.append(error)


async def _each(
    requests: Iterable[SendRequest] | AsyncIterable[SendRequest], errors: list[Exception]
) -> AsyncIterator[SendRequest]:
    """Works like `_until_error`, and also takes an async iterable."""
    if not isinstance(requests, AsyncIterable):
        for request in _until_error(requests, errors):
            yield request
        return
    try:
        async for request in requests:
            yield request
    except Exception as error:
        errors.append(error)
