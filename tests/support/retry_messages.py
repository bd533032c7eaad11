"""Writes and reads `RetryMessage`s byte by byte, so that tests do not trust Homing's codec."""

from __future__ import annotations

from msgspec import Struct

_NUMBERS = {
    "message_id": 1,
    "original_payload": 2,
    "original_queue": 3,
    "error_reason": 4,
    "retry_count": 5,
    "max_retries": 6,
    "next_retry_at_ms": 7,
}
_NAMES = {number: name for name, number in _NUMBERS.items()}
_TEXTS = frozenset({"message_id", "original_queue", "error_reason"})
VARINT, BYTES = 0, 2


class Retry(Struct, frozen=True, kw_only=True):
    """The fields of a message, with protobuf's defaults."""

    message_id: str = ""
    original_payload: bytes = b""
    original_queue: str = ""
    error_reason: str = ""
    retry_count: int = 0
    max_retries: int = 0
    next_retry_at_ms: int = 0


def varint(number: int) -> bytes:
    """Returns an integer as a varint. A negative one takes ten bytes."""
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes((*out, number))


def field(number: int, value: str | bytes | int) -> bytes:
    """Returns one field with its tag."""
    if isinstance(value, int):
        return varint(number << 3 | VARINT) + varint(value)
    raw = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | BYTES) + varint(len(raw)) + raw


def write_retry(**fields: str | bytes | int) -> bytes:
    """Returns a message with these fields, in the order of their numbers."""
    return b"".join(field(number, fields[name]) for name, number in _NUMBERS.items() if name in fields)


def read_retry(body: bytes) -> Retry:
    """Reads a message. Raises `AssertionError` if it is not a well-formed one."""
    fields: dict[str, str | bytes | int] = {}
    at = 0

    def next_varint() -> int:
        nonlocal at
        number = shift = 0
        while True:
            byte = body[at]
            at += 1
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number

    while at < len(body):
        tag = next_varint()
        name = _NAMES[tag >> 3]
        if tag & 7 == VARINT:
            fields[name] = next_varint()
        else:
            assert tag & 7 == BYTES, f"{name} has the wire type {tag & 7}"
            size = next_varint()
            raw = body[at : at + size]
            assert len(raw) == size, f"{name} is cut off"
            at += size
            fields[name] = raw.decode() if name in _TEXTS else raw
    return Retry(**fields)  # type: ignore[arg-type]
