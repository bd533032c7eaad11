"""Reads a request's body: whole, and bounded after decompression. How long it may take, others look after."""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from homing.api.answers import ApiError

Receive = Callable[[], Awaitable[Any]]
Hold = Callable[[int], None]
"""Told how many more bytes are kept in memory; raises where that is too much."""

_WINDOW = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_SMALL = 64 * 1024
"""Bodies up to this are not counted one by one: so many are bounded by the number of requests."""


async def read_body(receive: Receive, headers: Mapping[str, str], *, limit: int, hold: Hold) -> bytes:
    """The body, decompressed; raises what there is to be told where it is too large."""
    length = headers.get("content-length", "")
    if length == "0":
        return b""
    if length.isdecimal() and len(length) < 20 and int(length) > limit:
        raise _too_large(limit)  # compressed ones are no larger than what is in them
    encoding = headers.get("content-encoding", "").strip().lower()
    window = _window(encoding)
    message = await receive()
    if message.get("more_body") or message["type"] == "http.disconnect":
        body = await _joined(receive, message, limit, hold)
    else:  # the usual case: it came in one piece
        body = message.get("body", b"")
    if window is not None:
        return _inflated(body, encoding, window, limit, hold)
    if len(body) > limit:
        raise _too_large(limit)
    return body


async def _joined(receive: Receive, message: Any, limit: int, hold: Hold) -> bytes:
    whole = bytearray()
    held = 0
    while True:
        if message["type"] == "http.disconnect":
            raise ApiError("REQUEST_TIMEOUT", "the client went away before its body was complete")
        whole += message.get("body", b"")
        if len(whole) > limit:
            raise _too_large(limit)
        if len(whole) > held + _SMALL:
            hold(len(whole) - held)
            held = len(whole)
        if not message.get("more_body"):
            return bytes(whole)
        message = await receive()


def _window(encoding: str) -> int | None:
    """How zlib reads it; None: it is plain."""
    if encoding in ("", "identity"):
        return None
    window = _WINDOW.get(encoding)
    if window is None:
        raise ApiError(
            "UNSUPPORTED_MEDIA_TYPE",
            f"Content-Encoding: {encoding!r} is not understood; use gzip or deflate",
            field="Content-Encoding",
        )
    return window


def _inflated(body: bytes, encoding: str, window: int, limit: int, hold: Hold) -> bytes:
    """In steps, so that no more is made than may be kept; small ones, as each copies what it leaves over."""
    stream = zlib.decompressobj(wbits=window)
    plain = bytearray()
    held = 0
    try:
        for at in range(0, len(body), _SMALL):
            rest = body[at : at + _SMALL]
            while rest and not stream.eof:
                plain += stream.decompress(rest, _SMALL)
                rest = stream.unconsumed_tail
                if len(plain) > limit:
                    raise _too_large(limit)
                if len(plain) > held + _SMALL:
                    hold(len(plain) - held)
                    held = len(plain)
    except zlib.error as error:
        raise ApiError("MALFORMED_REQUEST", f"the body is not {encoding}: {error}") from None
    if not stream.eof:
        raise ApiError("MALFORMED_REQUEST", f"the body is cut off: its {encoding} data has no end")
    return bytes(plain)


def _too_large(limit: int) -> ApiError:
    return ApiError("PAYLOAD_TOO_LARGE", f"the body has more than {limit} bytes, counted after decompression")
