"""Lists that are longer than a page of the store are read completely."""

from __future__ import annotations

from datetime import timedelta

import pytest

from homing.engine.operations import recipients, reload_requests, statistics
from homing.engine.operations.policies import EVERY_TENANT
from homing.engine.operations.reload_requests import ReloadAnswer, ReloadRequests
from support.engine_harness import ADA, EngineHarness, mail, seconds


@pytest.fixture(autouse=True)
def pages_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (recipients, reload_requests, statistics):
        monkeypatch.setattr(module, "_PAGE", 2)


@pytest.mark.parametrize("number", [1, 2, 5])
async def test_all_preferences_of_a_recipient_are_listed_and_deleted(
    harness: EngineHarness, number: int
) -> None:
    engine = await harness.open(working=False)
    for category in range(number):
        await engine.recipients.prefer("ada", category=f"c{category}", allowed=False, who="ada")
    assert len(await engine.recipients.preferences("ada")) == number
    await engine.recipients.put({"id": "ada", "email": ADA}, who="ada")
    await engine.recipients.delete("ada")
    assert await engine.recipients.preferences("ada") == ()


async def test_all_suppressions_of_an_address_are_listed_up_to_the_limit(harness: EngineHarness) -> None:
    engine = await harness.open(working=False)
    for category in range(5):
        await engine.recipients.suppress("email", ADA, category=f"c{category}", who="ada")
    found = await engine.recipients.suppressions("email", ADA)
    assert [one.category for one in found] == [f"c{category}" for category in range(5)]
    assert await engine.recipients.suppressions("email", ADA, limit=3) == found[:3]
    assert await engine.recipients.suppressions("email", ADA, after=found[1].place) == found[2:]


async def test_the_earliest_due_notifications_of_all_pages_are_selected(harness: EngineHarness) -> None:
    engine = await harness.open(working=False)
    ids = []
    for _ in range(5):
        ids.append(await mail(engine))
        await seconds(1)
    found = await engine.select_pending(4, max_attempts=3, delay=timedelta(seconds=1))
    assert [one.id for one in found] == ids[:4]


async def test_a_new_request_to_reload_removes_all_earlier_answers(harness: EngineHarness) -> None:
    await harness.open(working=False)
    store = harness.store
    first = await ReloadRequests(store, "w").ask(who="ada")
    for number in range(5):
        await ReloadRequests(store, f"w{number}").answer(
            ReloadAnswer(worker=f"w{number}", number=first.number)
        )
    second = await ReloadRequests(store, "w").ask(who="bob")
    assert second.number > first.number
    assert await store.list_entries(EVERY_TENANT, "reload_answer", limit=10) == ()
