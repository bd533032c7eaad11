"""Buffered randomness: as many bits as requested, and never the same twice."""

from __future__ import annotations

import os

from homing.engine.system_runtime import SystemRandomSource


def test_it_returns_as_many_bits_as_requested() -> None:
    rng = SystemRandomSource()
    for bits in (1, 7, 8, 53, 74, 256, 100_000):
        drawn = [rng.getrandbits(bits) for _ in range(20)]
        assert all(0 <= one < 2**bits for one in drawn)
        assert max(drawn) >= 2 ** (bits - 1) or bits == 1, "the highest bit is set about every other time"
    assert all(0 <= rng.random() < 1 for _ in range(1_000))


def test_nothing_is_returned_twice() -> None:
    rng = SystemRandomSource()
    assert len({rng.getrandbits(74) for _ in range(20_000)}) == 20_000


def test_a_forked_child_does_not_repeat_its_parent_s_numbers() -> None:
    rng = SystemRandomSource()
    rng.getrandbits(74)  # the buffer is filled
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, str(rng.getrandbits(74)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as said:
        assert int(said.read()) != rng.getrandbits(74)
