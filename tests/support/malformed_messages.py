"""Malformed `RetryMessage`s: cut off, of wrong types, out of range, too large, or not protobuf at all."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from support.retry_messages import field, varint, write_retry

LARGE = 16 * 1024 * 1024


def malformed_messages(number: int, seed: int, large_every: int = 500) -> Iterator[bytes]:
    """Yields messages that a bridge must reject, the same ones for the same seed.

    Each has a different body, so that tests can find each of them again.
    """
    rng = Random(seed)
    for place in range(number):
        mark = f"{seed}-{place}"
        if large_every and place % large_every == large_every - 1:
            yield write_retry(message_id=mark, original_queue="q", original_payload=bytes(LARGE))
        else:
            yield rng.choice(_KINDS)(rng, mark)


def _truncated(rng: Random, mark: str) -> bytes:
    whole = write_retry(message_id=mark, original_payload=rng.randbytes(40), original_queue="orders")
    last = len(whole) - 1 - len("orders")
    return whole[: rng.randrange(len(field(1, mark)) + 3, last)]


def _wrong_type(rng: Random, mark: str) -> bytes:
    number = rng.choice((1, 2, 3, 4, 5, 6, 7))
    value: bytes | int = rng.randbytes(5) if number >= 5 else rng.randrange(1 << 40)
    return write_retry(message_id=mark, original_queue="q") + field(number, value)


def _negative(rng: Random, mark: str) -> bytes:
    number = rng.choice((5, 6, 7))
    return write_retry(message_id=mark, original_queue="q") + field(number, -rng.randrange(1, 1 << 31))


def _too_high(rng: Random, mark: str) -> bytes:
    most = rng.choice((1_000, 1 << 31, 1 << 32, 1 << 40, (1 << 63) - 1))
    return write_retry(message_id=mark, original_queue="q") + field(rng.choice((5, 6)), most)


def _nul(rng: Random, mark: str) -> bytes:
    name = rng.choice(("message_id", "original_queue", "error_reason"))
    fields = {"message_id": mark, "original_queue": "q", "error_reason": mark}
    return write_retry(**{**fields, name: f"{mark}\x00"})


def _not_utf8(rng: Random, mark: str) -> bytes:
    number = rng.choice((1, 3, 4))
    return write_retry(message_id=mark, original_queue="q") + field(number, b"\xc3\x28" + mark.encode())


def _missing(rng: Random, mark: str) -> bytes:
    return write_retry(**rng.choice(({"message_id": mark}, {"original_queue": mark})))


def _noise(rng: Random, mark: str) -> bytes:
    return b"\xff" * 11 + mark.encode() + rng.randbytes(rng.randrange(200))


def _endless(rng: Random, mark: str) -> bytes:
    return field(1, mark) + varint(5 << 3) + b"\x80" * 11


def _text(rng: Random, mark: str) -> bytes:
    return f'{{"message_id": "{mark}"}}'.encode()


_KINDS = (
    *(_truncated, _wrong_type, _negative, _too_high, _nul, _not_utf8),
    *(_missing, _noise, _endless, _text),
)
