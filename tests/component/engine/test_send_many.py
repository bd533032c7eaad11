"""Many requests in one stream: limited memory, one result each, rejections at their index."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from typing import Any
from weakref import WeakSet

import pytest

from homing import Rejection, SendRequest, SendResult, StoreUnavailable
from homing.core.lifecycle.claims import Acceptance, Claim, Submission
from homing.core.notifications import Content, Recipient
from homing.core.ports.stores import AwaitPrevious
from homing.core.retry.decide import RecipientFacts
from homing.providers.local.scripted import ScriptedProvider
from support.engine_harness import ADA, EngineHarness, WatchedStore, seconds, stored


def letter(n: int, **fields: Any) -> dict[str, Any]:
    return {"recipient": f"p{n}@example.org", "channel": "email", "content": {"body": f"no {n}"}, **fields}


async def test_each_request_has_its_result_in_order(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider()}, working=False)
    answers = [answer async for answer in engine.send_many(letter(n) for n in range(4400))]
    assert len(answers) == 4400
    for number in (0, 1999, 2000, 4399):
        answer = answers[number]
        assert isinstance(answer, SendResult)
        assert (await engine.get(answer.id)).content.body == f"no {number}"
    assert await stored(harness) == 4400
    assert harness.store.calls["accept"] == 3


async def test_the_ids_of_a_chunk_ascend_in_the_order_of_its_requests(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider()}, working=False)
    answers = [answer async for answer in engine.send_many(letter(n) for n in range(100))]
    ids = [answer.id for answer in answers if isinstance(answer, SendResult)]
    assert len(set(ids)) == 100
    assert ids == sorted(ids)


async def test_an_async_source_is_read_at_most_two_chunks_ahead(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider()}, working=False)
    read = 0

    async def source() -> AsyncIterator[dict[str, Any]]:
        nonlocal read
        for n in range(7000):
            read += 1
            yield letter(n)

    farthest = answered = 0
    async for _ in engine.send_many(source()):
        answered += 1
        farthest = max(farthest, read - answered)
    assert answered == 7000
    assert farthest < 4000


async def test_a_request_is_released_once_it_is_prepared(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider()}, working=False)
    kept: WeakSet[Request] = WeakSet()
    most = 0

    class Request(dict[str, Any]):
        __hash__ = object.__hash__  # type: ignore[assignment]

    def source() -> Iterator[dict[str, Any]]:
        nonlocal most
        for n in range(2000):
            request = Request(letter(n))
            kept.add(request)
            most = max(most, len(kept))
            yield request

    assert len([answer async for answer in engine.send_many(source())]) == 2000
    assert most <= 300  # that of the whole chunk would be 2000


async def test_a_caller_that_stops_iterating_stops_the_stream(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider()}, working=False)
    read = 0

    def source() -> Iterator[dict[str, Any]]:
        nonlocal read
        while True:
            read += 1
            yield letter(read)

    stream = engine.send_many(source())
    async for _ in stream:
        break
    await stream.aclose()  # type: ignore[attr-defined]
    assert read == 4000  # the next chunk was read while the store wrote the first, so it may be accepted too
    assert await stored(harness) in (2000, 4000)


async def test_requests_before_an_error_of_the_source_get_their_results(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider()}, working=False)

    def source() -> Iterator[dict[str, Any]]:
        for n in range(2000):
            yield letter(n)
        raise OSError("the file ends here")

    stream = engine.send_many(source())
    for _ in range(2000):
        await anext(stream)
    with pytest.raises(OSError, match="ends here"):
        await anext(stream)
    assert await stored(harness) == 2000


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_requests_before_an_error_in_the_same_chunk_are_accepted_too(
    harness: EngineHarness, kind: str
) -> None:
    engine = await harness.open({"mail": ScriptedProvider()}, working=False)

    def source() -> Iterator[dict[str, Any]]:
        yield from (letter(n) for n in range(2003))
        raise OSError("the file ends here")

    async def async_source() -> AsyncIterator[dict[str, Any]]:
        for one in source():
            yield one

    stream = engine.send_many(source() if kind == "plain" else async_source())
    answers = [await anext(stream) for _ in range(2003)]
    with pytest.raises(OSError, match="ends here"):
        await anext(stream)
    assert {type(answer) for answer in answers} == {SendResult}
    assert await stored(harness) == 2003


async def test_a_mapping_that_cannot_be_read_is_one_rejection(harness: EngineHarness) -> None:
    class Lazy(dict[str, Any]):
        def items(self) -> Any:
            raise RuntimeError("the session is closed")

    engine = await harness.open({"mail": ScriptedProvider()}, working=False)
    answers = [a async for a in engine.send_many([letter(0), Lazy(letter(1)), letter(2)])]
    assert [isinstance(answer, SendResult) for answer in answers] == [True, False, True]
    assert isinstance(answers[1], Rejection)
    assert (answers[1].index, answers[1].code) == (1, "INVALID_REQUEST")


async def test_a_rejection_is_at_its_index_and_the_others_are_accepted(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider()}, working=False)
    bad: dict[int, tuple[dict[str, Any], str]] = {
        0: (letter(0, channel="fax"), "channel"),
        3: (letter(3, recipient="nobody"), "recipient.email"),
        501: (letter(501, priorty="high"), "priorty"),
        502: (letter(502, content=None), "content"),
        700: (letter(700, synchronous=True), "synchronous"),
    }
    requests = [bad[n][0] if n in bad else letter(n) for n in range(800)]
    answers = [answer async for answer in engine.send_many(requests)]
    assert len(answers) == 800
    rejected = {n: answer for n, answer in enumerate(answers) if isinstance(answer, Rejection)}
    assert {n: (r.index, r.field) for n, r in rejected.items()} == {
        n: (n, field) for n, (_, field) in bad.items()
    }
    assert {r.code for r in rejected.values()} == {"INVALID_REQUEST"}
    assert await stored(harness) == 795


@pytest.mark.parametrize("junk", [None, 5, "text", [], {"recipient": 5, "channel": "email"}])
async def test_an_item_that_is_not_a_request_is_rejected_like_any_other(
    harness: EngineHarness, junk: Any
) -> None:
    engine = await harness.open({"mail": ScriptedProvider()}, working=False)
    answers = [answer async for answer in engine.send_many([letter(0), junk, letter(2)])]
    first, rejected, last = answers
    assert isinstance(rejected, Rejection)
    assert rejected.index == 1
    assert isinstance(first, SendResult)
    assert isinstance(last, SendResult)


async def test_a_used_key_with_another_body_is_rejected_at_its_index(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider()}, working=False)
    requests = [letter(0, idempotencyKey="k"), letter(1), letter(2, idempotency_key="k"), letter(0)]
    requests.append(letter(0, idempotency_key="k"))
    answers = [answer async for answer in engine.send_many(requests)]
    conflict = answers[2]
    assert isinstance(conflict, Rejection)
    assert (conflict.index, conflict.field, conflict.code) == (2, "idempotencyKey", "IDEMPOTENCY_CONFLICT")
    repeated, first = answers[4], answers[0]
    assert isinstance(repeated, SendResult)
    assert isinstance(first, SendResult)
    assert (repeated.id, repeated.duplicate) == (first.id, True)
    assert await stored(harness) == 3


async def test_a_conflict_far_into_the_stream_has_its_own_index(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider()}, working=False)
    requests = [letter(n, idempotency_key="k" if n in (0, 1777) else None) for n in range(2200)]
    answers = [answer async for answer in engine.send_many(requests)]
    assert [(n, a.index) for n, a in enumerate(answers) if isinstance(a, Rejection)] == [(1777, 1777)]


async def test_request_structs_are_accepted_too(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider()}, working=False)
    request = SendRequest(
        recipient=Recipient(email="a@example.org"), channel="email", content=Content(body="x")
    )
    (answer,) = [answer async for answer in engine.send_many([request])]
    assert isinstance(answer, SendResult)


async def test_an_empty_stream_does_not_call_the_store(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider()}, working=False)
    assert [answer async for answer in engine.send_many([])] == []
    (only,) = [answer async for answer in engine.send_many([letter(0, channel="fax")])]
    assert isinstance(only, Rejection)
    assert harness.store.calls["accept"] == 0


async def test_an_unavailable_store_ends_the_stream_and_keeps_earlier_results(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider()}, working=False)
    answered = 0

    async def listen() -> None:
        nonlocal answered
        async for _ in engine.send_many(letter(n) for n in range(9000)):
            answered += 1
            if answered == 700:
                harness.store.away.add("accept")

    with pytest.raises(StoreUnavailable):
        await listen()
    assert answered == await stored(harness)
    assert answered in (2000, 4000, 6000)


async def test_streamed_notifications_are_delivered_while_others_arrive(harness: EngineHarness) -> None:
    provider = ScriptedProvider()
    engine = await harness.open({"mail": provider})
    async for _ in engine.send_many(letter(n) for n in range(1500)):
        pass
    await seconds(2)
    assert len({delivery.address for delivery in provider.sent}) == len(provider.sent) == 1500


async def test_a_request_that_cannot_be_prepared_is_one_rejection(harness: EngineHarness) -> None:
    class FailingRenderer:
        async def render(self, key: str, *args: Any, **fields: Any) -> Any:
            raise KeyError("a bug in the renderer")

    engine = await harness.open(working=False, renderer=FailingRenderer())
    good = {"recipient": ADA, "channel": "email", "content": {"body": "x"}}
    bad = {"recipient": ADA, "channel": "email", "template_key": "t"}
    results = [one async for one in engine.send_many([good, bad, good])]
    assert [type(one).__name__ for one in results] == ["SendResult", "Rejection", "SendResult"]


async def test_all_parts_of_a_refused_chunk_are_written_within_one_limit(harness: EngineHarness) -> None:
    """The store refuses one request, so the chunk is halved again and again."""
    engine = await harness.open({"mail": ScriptedProvider()}, working=False, store_timeout_ms=10_000)
    harness.store.connection.execute(
        "CREATE TRIGGER refuses BEFORE INSERT ON homing_notifications WHEN NEW.address = 'p7@example.org' "
        "BEGIN SELECT RAISE(ABORT, 'no'); END"
    )

    async def answer_slowly(operation: str) -> None:
        await asyncio.sleep(3 if operation == "accept" else 0)

    harness.store.on_call = answer_slowly
    with pytest.raises(StoreUnavailable, match="store_timeout_ms"):
        async for _ in engine.send_many(letter(n) for n in range(2000)):
            pass
    assert harness.store.calls["accept"] == 4


async def test_a_chunk_may_take_long_to_prepare_if_every_lookup_is_answered_soon(
    harness: EngineHarness,
) -> None:
    class SlowDirectory:
        async def resolve(self, tenant: str, ids: Collection[str]) -> dict[str, Recipient]:
            await asyncio.sleep(0.05)
            return {id: Recipient(id=id, email=f"{id}@example.org") for id in ids}

        async def facts(self, claims: Sequence[Claim]) -> dict[str, RecipientFacts]:
            return {}

    engine = await harness.open(
        {"mail": ScriptedProvider()}, working=False, store_timeout_ms=10_000, directory=SlowDirectory()
    )
    asked = [letter(n, recipient={"id": f"r{n}"}) for n in range(500)]
    assert len([answer async for answer in engine.send_many(asked)]) == await stored(harness) == 500


class FailingDirectory:
    """Fails for one recipient, or for all of them after some calls."""

    def __init__(self, *, failing: str = "", calls: int = 10**6) -> None:
        self._failing = failing
        self._calls_left = calls

    async def resolve(self, tenant: str, ids: Collection[str]) -> dict[str, Recipient]:
        self._calls_left -= 1
        if self._failing in ids or self._calls_left < 0:
            raise ValueError("badly formed UUID")
        return {id: Recipient(id=id, email=f"{id}@example.org") for id in ids}

    async def facts(self, claims: Sequence[Claim]) -> dict[str, RecipientFacts]:
        return {}


@pytest.mark.parametrize("place", [0, 150, 249])
async def test_a_request_for_which_the_directory_fails_is_one_rejection(
    harness: EngineHarness, place: int
) -> None:
    directory = FailingDirectory(failing=f"r{place}")
    engine = await harness.open({"mail": ScriptedProvider()}, working=False, directory=directory)
    asked = [letter(n, recipient={"id": f"r{n}"}) for n in range(250)]
    answers = [answer async for answer in engine.send_many(asked)]
    (refused,) = [answer for answer in answers if isinstance(answer, Rejection)]
    assert (refused.index, refused.code) == (place, "STORE_UNAVAILABLE")
    assert refused.message == "the recipient directory failed (ValueError); try again"
    assert await stored(harness) == 249


@pytest.mark.parametrize("place", [0, 30, 59])
async def test_a_request_for_which_the_directory_hangs_is_one_rejection(
    harness: EngineHarness, place: int
) -> None:
    class HangingDirectory(FailingDirectory):
        async def resolve(self, tenant: str, ids: Collection[str]) -> dict[str, Recipient]:
            if f"r{place}" in ids:
                await asyncio.sleep(3_600)
            return await super().resolve(tenant, ids)

    engine = await harness.open({"mail": ScriptedProvider()}, working=False, directory=HangingDirectory())
    asked = [letter(n, recipient={"id": f"r{n}"}) for n in range(60)]
    answers = [answer async for answer in engine.send_many(asked)]
    (refused,) = [answer for answer in answers if isinstance(answer, Rejection)]
    assert (refused.index, refused.message) == (
        place,
        "the recipient directory failed (TimeoutError); try again",
    )
    assert len(answers) == 60
    assert await stored(harness) == 59


async def test_a_directory_that_fails_for_everybody_ends_the_stream(harness: EngineHarness) -> None:
    directory = FailingDirectory(calls=120)
    engine = await harness.open({"mail": ScriptedProvider()}, working=False, directory=directory)
    asked = [letter(n, recipient={"id": f"r{n}"}) for n in range(250)]
    answered = 0

    async def listen() -> None:
        nonlocal answered
        async for answer in engine.send_many(asked):
            assert isinstance(answer, SendResult)
            answered += 1

    with pytest.raises(StoreUnavailable, match="directory failed"):
        await listen()
    assert answered == await stored(harness) == 100


async def accept_after(
    store: WatchedStore, batch: Sequence[Submission], before: AwaitPrevious
) -> tuple[Acceptance, ...]:
    """Stores a chunk like a store that can begin before the previous chunk is stored."""
    await before()
    return await store.accept(batch)


@pytest.mark.parametrize("overlaps", [False, True])
async def test_no_chunk_is_stored_after_one_that_could_not_be_stored(
    harness: EngineHarness, overlaps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store fails for the first chunk only, after a while in which it could take the second one."""
    if overlaps:
        monkeypatch.setattr(WatchedStore, "accept_after", accept_after, raising=False)
    engine = await harness.open({"mail": ScriptedProvider()}, working=False)

    async def fail_once(operation: str) -> None:
        if operation == "accept" and harness.store.calls["accept"] == 1:
            await asyncio.sleep(1)
            raise StoreUnavailable

    harness.store.on_call = fail_once
    with pytest.raises(StoreUnavailable):
        [answer async for answer in engine.send_many(letter(n) for n in range(6000))]
    await seconds(10)
    assert await stored(harness) == 0


@pytest.mark.parametrize("overlaps", [False, True])
async def test_the_wait_for_the_previous_chunk_does_not_count(
    harness: EngineHarness, overlaps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each chunk takes 8 of its 10 seconds, and waits for the one before."""
    if overlaps:
        monkeypatch.setattr(WatchedStore, "accept_after", accept_after, raising=False)
    engine = await harness.open({"mail": ScriptedProvider()}, working=False, store_timeout_ms=10_000)

    async def answer_slowly(operation: str) -> None:
        await asyncio.sleep(8 if operation == "accept" else 0)

    harness.store.on_call = answer_slowly
    answers = [answer async for answer in engine.send_many(letter(n) for n in range(6000))]
    assert len(answers) == await stored(harness) == 6000
