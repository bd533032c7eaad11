"""Request and response bodies: reading and decompressing requests, and the types of responses and errors.

`read_body` enforces the size limits. Its caller enforces the time limit.
"""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, TypeVar

from msgspec import Struct, field

Receive = Callable[[], Awaitable[Any]]

ReserveBytes = Callable[[int], None]
"""Reserves memory for this many more bytes. Raises `ApiError` if all bodies together exceed the limit."""


_WINDOW = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}

_UNCOUNTED_BYTES = 64 * 1024
"""Bodies up to this size do not count towards the memory limit. The limit on concurrent requests bounds their
total."""


async def read_body(receive: Receive, headers: Mapping[str, str], *, limit: int, hold: ReserveBytes) -> bytes:
    """Returns the decompressed body. Raises `ApiError` if it is too large or cannot be decompressed."""
    length = headers.get("content-length", "")
    if length == "0":
        return b""
    if length.isdecimal() and len(length) < 20 and int(length) > limit:
        raise _too_large(limit)  # a compressed body is larger still when decompressed
    encoding = headers.get("content-encoding", "").strip().lower()
    window = _window(encoding)
    message = await receive()
    if message.get("more_body") or message["type"] == "http.disconnect":
        body = await _read_chunks(receive, message, limit, hold)
    else:  # the usual case: the whole body arrived in one message
        body = message.get("body", b"")
    if window is not None:
        return _decompress(body, encoding, window, limit, hold)
    if len(body) > limit:
        raise _too_large(limit)
    return body


async def _read_chunks(receive: Receive, message: Any, limit: int, hold: ReserveBytes) -> bytes:
    body = bytearray()
    held = 0
    while True:
        if message["type"] == "http.disconnect":
            raise ApiError("REQUEST_TIMEOUT", "the client disconnected before the body was complete")
        body += message.get("body", b"")
        if len(body) > limit:
            raise _too_large(limit)
        if len(body) > held + _UNCOUNTED_BYTES:
            hold(len(body) - held)
            held = len(body)
        if not message.get("more_body"):
            return bytes(body)
        message = await receive()


def _window(encoding: str) -> int | None:
    """Returns zlib's window parameter for a Content-Encoding, or None if the body is not compressed."""
    if encoding in ("", "identity"):
        return None
    window = _WINDOW.get(encoding)
    if window is None:
        raise ApiError(
            "UNSUPPORTED_MEDIA_TYPE",
            f"Content-Encoding: {encoding!r} is not supported; use gzip or deflate",
            field="Content-Encoding",
        )
    return window


def _decompress(body: bytes, encoding: str, window: int, limit: int, hold: ReserveBytes) -> bytes:
    """Decompresses a body in steps, so that the output exceeds the limit by at most one step.

    The steps are small, because zlib copies the unconsumed input in each of them.
    """
    stream = zlib.decompressobj(wbits=window)
    plain = bytearray()
    held = 0
    try:
        for at in range(0, len(body), _UNCOUNTED_BYTES):
            rest = body[at : at + _UNCOUNTED_BYTES]
            while rest and not stream.eof:
                plain += stream.decompress(rest, _UNCOUNTED_BYTES)
                rest = stream.unconsumed_tail
                if len(plain) > limit:
                    raise _too_large(limit)
                if len(plain) > held + _UNCOUNTED_BYTES:
                    hold(len(plain) - held)
                    held = len(plain)
    except zlib.error as error:
        raise ApiError("MALFORMED_REQUEST", f"the body is not {encoding}: {error}") from None
    if not stream.eof:
        raise ApiError("MALFORMED_REQUEST", f"the body is incomplete: its {encoding} data ends early")
    return bytes(plain)


def _too_large(limit: int) -> ApiError:
    return ApiError("PAYLOAD_TOO_LARGE", f"the body has more than {limit} bytes after decompression")


_T = TypeVar("_T")


class ApiResponse(Struct, Generic[_T], frozen=True):
    """A response with its own status, headers or content type.

    The value is encoded as JSON, except that bytes are sent unchanged and None means no body.
    """

    value: _T
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/json"


class ApiError(Exception):
    """An error response that the API itself decides on. Errors of the engine have their own classes."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.field = field
        self.headers: Mapping[str, str] = headers or {}
