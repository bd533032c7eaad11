"""The first provider of a notification on a route that is split by weight."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from homing.core.ids import uuid7
from homing.core.routing import failover
from homing.core.routing.failover import first_step
from support.core_builders import NOW, THREE

NAMES = [stop.provider for stop in THREE]


def ids(number: int) -> list[str]:
    """Ids as they are created: many in the same millisecond."""
    rng = Random(7)
    return [uuid7(NOW + n // 50, rng.getrandbits(74)) for n in range(number)]


def drawn(weights: dict[str, int], *, out: str = "", number: int = 10_000) -> Counter[str]:
    usable = {name for name in NAMES if name != out}
    return Counter(first_step(THREE, weights, id, usable.__contains__).provider for id in ids(number))


def test_without_weights_every_notification_starts_with_the_first_provider() -> None:
    assert drawn({}) == {"twilio": 10_000}


@pytest.mark.parametrize(
    ("weights", "shares"),
    [
        ({"twilio": 1, "sns": 1, "spare": 1}, (1 / 3, 1 / 3, 1 / 3)),
        ({"twilio": 3, "sns": 1, "spare": 0}, (0.75, 0.25, 0)),
        ({"twilio": 90, "sns": 9, "spare": 1}, (0.9, 0.09, 0.01)),
        ({"twilio": 0, "sns": 0, "spare": 5}, (0, 0, 1)),
        ({"twilio": 1, "sns": 1_000_000, "spare": 0}, (0, 1, 0)),
    ],
)
def test_each_provider_gets_its_share(weights: dict[str, int], shares: tuple[float, ...]) -> None:
    found = drawn(weights)
    for name, share in zip(NAMES, shares, strict=True):
        spread = 5 * (10_000 * share * (1 - share)) ** 0.5  # five standard deviations
        assert abs(found[name] - 10_000 * share) <= max(spread, 1)


def test_the_same_id_always_gets_the_same_provider() -> None:
    weights = {"twilio": 2, "sns": 1, "spare": 1}
    once, again = ([first_step(THREE, weights, id) for id in ids(200)] for _ in range(2))
    assert once == again
    names = [stop.provider for stop in once[:8]]  # in every process and every release
    assert names == ["spare", "twilio", "twilio", "spare", "twilio", "twilio", "twilio", "sns"]


def test_if_a_provider_is_out_only_its_own_notifications_move() -> None:
    weights = {"twilio": 2, "sns": 1, "spare": 1}
    moved = {"twilio": 0, "sns": 0, "spare": 0}
    for id in ids(2_000):
        before = first_step(THREE, weights, id).provider
        after = first_step(THREE, weights, id, lambda name: name != "sns").provider
        if before != after:
            moved[before] += 1
    assert moved["sns"] > 400
    assert (moved["twilio"], moved["spare"]) == (0, 0)


def test_raising_a_weight_only_moves_notifications_to_that_provider() -> None:
    light, heavy = {"twilio": 1, "sns": 1, "spare": 1}, {"twilio": 2, "sns": 1, "spare": 1}
    for id in ids(2_000):
        before, after = first_step(THREE, light, id).provider, first_step(THREE, heavy, id).provider
        assert after in (before, "twilio")


def test_a_provider_that_is_out_is_drawn_only_if_no_other_is_left() -> None:
    weights = {"twilio": 1, "sns": 1, "spare": 0}
    assert set(drawn(weights, out="twilio")) == {"sns"}
    nobody = Counter(first_step(THREE, weights, id, lambda _: False).provider for id in ids(500))
    assert set(nobody) == {"twilio", "sns"}


def test_a_provider_with_weight_0_is_not_drawn_as_a_substitute() -> None:
    weights = {"twilio": 1, "sns": 0, "spare": 0}
    assert set(drawn(weights, out="twilio", number=100)) == {"twilio"}


@pytest.mark.parametrize("hashed", [b"\x00" * 8, b"\xff" * 8], ids=["lowest", "highest"])
def test_a_provider_is_found_whatever_the_hash_is(hashed: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The score is a logarithm, and there is none of 0."""

    class ExtremeHash:
        def digest(self) -> bytes:
            return hashed

    monkeypatch.setattr(failover, "blake2b", lambda *_, **__: ExtremeHash())
    assert first_step(THREE, dict.fromkeys(NAMES, 1), "n-1").provider in NAMES
