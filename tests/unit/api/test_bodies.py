"""Request bodies: complete, limited, decompressed."""

from __future__ import annotations

import gzip
import random
import zlib
from typing import Any

import pytest

from homing.api.http.bodies import ApiError, read_body


class Pieces:
    """Returns a function that yields the body piece by piece, as a server does."""

    def __init__(self, *pieces: bytes, whole: bool = True) -> None:
        self._messages: list[dict[str, Any]] = [
            {"type": "http.request", "body": piece, "more_body": True} for piece in pieces
        ]
        if whole:
            self._messages[-1]["more_body"] = False
        else:
            self._messages.append({"type": "http.disconnect"})

    async def __call__(self) -> dict[str, Any]:
        return self._messages.pop(0)


class ByteCounter:
    """Counts the bytes that are held, up to a limit."""

    def __init__(self, most: int = 10**9) -> None:
        self.held = 0
        self._most = most

    def __call__(self, more: int) -> None:
        if self.held + more > self._most:
            raise ApiError("OVERLOADED", "no room")
        self.held += more


async def read(pieces: Pieces, limit: int = 10**6, room: ByteCounter | None = None, **headers: str) -> bytes:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await read_body(pieces, named, limit=limit, hold=room or ByteCounter())


@pytest.mark.parametrize("pieces", [(b"whole",), (b"wh", b"ol", b"e"), (b"", b"whole", b"")])
async def test_a_body_is_complete_however_it_is_split(pieces: tuple[bytes, ...]) -> None:
    assert await read(Pieces(*pieces)) == b"whole"


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "deflate"])
async def test_a_body_is_decompressed(encoding: str) -> None:
    packed = zlib.compress(b"plain") if encoding == "deflate" else gzip.compress(b"plain")
    assert await read(Pieces(packed[:5], packed[5:]), content_encoding=encoding) == b"plain"


@pytest.mark.parametrize("level", [0, 9], ids=["hardly smaller", "much smaller"])
async def test_a_large_body_is_complete_after_stepwise_decompression(level: int) -> None:
    plain = random.Random(1).randbytes(500_000) if level == 0 else b"plain " * 90_000
    packed = gzip.compress(plain, level)
    assert await read(Pieces(packed[:1_000], packed[1_000:]), content_encoding="gzip") == plain


@pytest.mark.parametrize("pieces", [(b"x" * 101,), (b"x" * 60, b"x" * 60)], ids=["at once", "in pieces"])
async def test_a_body_above_the_limit_is_refused(pieces: tuple[bytes, ...]) -> None:
    with pytest.raises(ApiError) as refused:
        await read(Pieces(*pieces), limit=100)
    assert refused.value.code == "PAYLOAD_TOO_LARGE"


async def test_a_body_with_too_large_a_content_length_is_refused_before_it_is_read() -> None:
    for length in ("101", "9" * 18):
        with pytest.raises(ApiError) as refused:
            await read(Pieces(b"never read"), limit=100, content_length=length)
        assert refused.value.code == "PAYLOAD_TOO_LARGE"


async def test_a_decompression_bomb_is_stopped_early() -> None:
    room = ByteCounter()
    with pytest.raises(ApiError) as refused:
        await read(Pieces(gzip.compress(b" " * 50_000_000)), room=room, content_encoding="gzip")
    assert refused.value.code == "PAYLOAD_TOO_LARGE"
    assert room.held < 2 * 10**6


@pytest.mark.parametrize("packed", [b"nonsense", gzip.compress(b"plain")[:-9]], ids=["nonsense", "cut off"])
async def test_broken_compression_is_the_client_s_error(packed: bytes) -> None:
    with pytest.raises(ApiError) as refused:
        await read(Pieces(packed), content_encoding="gzip")
    assert refused.value.code == "MALFORMED_REQUEST"


async def test_an_unknown_compression_is_refused() -> None:
    with pytest.raises(ApiError) as refused:
        await read(Pieces(b"x"), content_encoding="br")
    assert (refused.value.code, refused.value.field) == ("UNSUPPORTED_MEDIA_TYPE", "Content-Encoding")


async def test_a_client_that_disconnects_leaves_no_partial_body() -> None:
    with pytest.raises(ApiError) as refused:
        await read(Pieces(b"half", whole=False))
    assert refused.value.code == "REQUEST_TIMEOUT"


async def test_large_bodies_are_counted_while_they_arrive_and_small_ones_are_not() -> None:
    small, large = ByteCounter(), ByteCounter()
    await read(Pieces(b"x" * 30_000, b"x" * 30_000), room=small)
    await read(Pieces(*[b"x" * 60_000] * 10), room=large)
    assert small.held == 0
    assert large.held > 500_000
    with pytest.raises(ApiError) as refused:
        await read(Pieces(*[b"x" * 60_000] * 10), room=ByteCounter(200_000))
    assert refused.value.code == "OVERLOADED"
