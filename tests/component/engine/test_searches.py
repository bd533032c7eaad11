"""Searches for notifications by any text that an operator has."""

from __future__ import annotations

import pytest

from homing import Homing, InvalidRequest
from homing.core.notifications import Filter, Status
from homing.core.search import SearchKind
from homing.engine.operations import searches
from homing.providers.local.scripted import ScriptedProvider
from support.engine_harness import EngineHarness, K, seconds


async def send(engine: Homing, **fields: object) -> str:
    request = {
        "channel": "email",
        "recipient": {"email": "ada@example.org"},
        "content": {"body": "."},
        **fields,
    }
    return (await engine.send(**request)).notification_ids[0]  # type: ignore[arg-type]


@pytest.fixture
async def engine(harness: EngineHarness) -> Homing:
    return await harness.open({"mail": ScriptedProvider()}, working=False)


async def test_one_box_finds_by_id_address_recipient_batch_and_message_id(engine: Homing) -> None:
    one = await send(engine, recipient={"id": "user-7", "email": "Grace@EXAMPLE.org"})
    await send(engine)
    await engine.process()
    found = await engine.history(one)
    message_id = found.attempts[0].provider_message_id
    assert message_id is not None
    for text in (one, one[:30], "user-7", "grace@example.org".replace("g", "G", 1), message_id):
        assert [item.id for item in (await engine.find(text)).items] == [one], text
    batch = found.notification.batch_id
    assert one in [item.id for item in (await engine.find(batch)).items]
    assert (await engine.find("nobody")).items == ()
    assert (await engine.of("other").find(one)).items == ()
    assert SearchKind.ADDRESS in (await engine.find("nobody")).compared_with


async def test_metadata_is_compared_within_a_limit_and_the_rest_on_the_next_page(
    engine: Homing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searches, "_SCANNED", 4)
    wanted = await send(engine, metadata={"order": 42})
    await seconds(1)  # ids of the same millisecond are in any order
    for _ in range(5):
        await send(engine, metadata={"order": 43})
    first = await engine.find("order=42")
    assert (first.items, first.complete, first.compared_with) == ((), False, (SearchKind.METADATA,))
    second = await engine.find("order=42", cursor=first.cursor)
    assert ([one.id for one in second.items], second.complete, second.cursor) == ([wanted], True, None)
    assert [one.id async for one in engine.find_all("order=42")] == [wanted]


async def test_a_worker_indexes_the_declared_metadata_so_that_old_notifications_are_found(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searches, "_SCANNED", 2)
    engine = await harness.open({"mail": ScriptedProvider()}, search={"metadata_keys": ["order"]})
    wanted = await send(engine, metadata={"order": 42, "note": "x"})
    for _ in range(5):
        await send(engine, metadata={"order": 43})
    await seconds(1)
    found = await engine.find("order=42")
    assert ([one.id for one in found.items], found.complete) == ([wanted], True)
    assert not (await engine.find("note=x")).complete


async def test_matches_of_several_kinds_are_merged_newest_first_on_every_page(engine: Homing) -> None:
    ids = []
    for number in range(9):
        recipient = {"id": "x@example.org", "email": "y@example.org"}
        by_address = {"email": "x@example.org"}
        ids.append(await send(engine, recipient=recipient if number % 3 else by_address))
    found, cursor = [], None
    while True:
        page = await engine.find("x@example.org", limit=2, cursor=cursor)
        found += [one.id for one in page.items]
        cursor = page.cursor
        if cursor is None:
            break
    assert found == sorted(ids, reverse=True)
    assert [one.id async for one in engine.find_all("x@example.org", most=4)] == found[:4]


async def test_a_filter_applies_to_the_text_and_also_selects_alone(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider(script=[K.BAD_CONTENT])})
    for _ in range(2):
        await send(engine)
    await seconds(5)
    failed = Filter(statuses=(Status.FAILED,))
    (dead,) = (await engine.find("ada@example.org", failed)).items
    assert [one.id for one in (await engine.find("", failed)).items] == [dead.id]
    assert len((await engine.find(filter={"type": "message"})).items) == 2


async def test_a_search_that_takes_too_long_is_not_complete(
    engine: Homing, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send(engine)
    monkeypatch.setattr(searches, "_WITHIN_S", 0.0)
    found = await engine.find("ada@example.org")
    assert not found.complete


@pytest.mark.parametrize("limit", [0, 1_001])
async def test_the_size_of_a_page_is_limited(engine: Homing, limit: int) -> None:
    with pytest.raises(InvalidRequest, match="limit"):
        await engine.find("x", limit=limit)
