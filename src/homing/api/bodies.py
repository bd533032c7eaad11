"""Reads a request's body: whole, bounded after decompression, and within a time."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from homing.api.answers import ApiError

Receive = Callable[[], Awaitable[Any]]

_WINDOW = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


async def read_body(receive: Receive, headers: Mapping[str, str], *, limit: int, within_ms: int) -> bytes:
    """The body, decompressed; raises what there is to be told where it is too large or too slow."""
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit:
        raise _too_large(limit)  # compressed ones are no larger than what is in them
    inflate = _inflater(headers.get("content-encoding", "").strip().lower(), limit)
    try:
        message = await asyncio.wait_for(receive(), within_ms / 1000) if length != "0" else {}
        if not message.get("more_body"):  # the usual case: it came in one piece
            return inflate([message.get("body", b"")])
        async with asyncio.timeout(within_ms / 1000):
            return inflate(await _pieces(receive, message, limit))
    except TimeoutError:
        raise ApiError("REQUEST_TIMEOUT", f"the body did not arrive within {within_ms} ms") from None


async def _pieces(receive: Receive, message: Any, limit: int) -> list[bytes]:
    pieces: list[bytes] = []
    size = 0
    while True:
        if message["type"] == "http.disconnect":
            raise ApiError("REQUEST_TIMEOUT", "the client went away before its body was complete")
        piece = message.get("body", b"")
        size += len(piece)
        if size > limit:
            raise _too_large(limit)
        pieces.append(piece)
        if not message.get("more_body"):
            return pieces
        message = await receive()


def _inflater(encoding: str, limit: int) -> Callable[[list[bytes]], bytes]:
    if encoding in ("", "identity"):
        return lambda pieces: pieces[0] if len(pieces) == 1 else b"".join(pieces)
    window = _WINDOW.get(encoding)
    if window is None:
        raise ApiError(
            "UNSUPPORTED_MEDIA_TYPE",
            f"Content-Encoding: {encoding!r} is not understood; use gzip or deflate",
            field="Content-Encoding",
        )

    def inflate(pieces: list[bytes]) -> bytes:
        stream = zlib.decompressobj(wbits=window)
        try:
            plain = stream.decompress(b"".join(pieces), limit + 1)
        except zlib.error as error:
            raise ApiError("MALFORMED_REQUEST", f"the body is not {encoding}: {error}") from None
        if len(plain) > limit:
            raise _too_large(limit)
        if not stream.eof:
            raise ApiError("MALFORMED_REQUEST", f"the body is cut off: its {encoding} data has no end")
        return plain

    return inflate


def _too_large(limit: int) -> ApiError:
    return ApiError("PAYLOAD_TOO_LARGE", f"the body has more than {limit} bytes, counted after decompression")
