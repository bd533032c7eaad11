"""Tests that every call is one transaction: if a part cannot be written, nothing is."""

from __future__ import annotations

from typing import Any

import pytest

from homing.core.errors import StoreError
from homing.core.events import ALERT
from homing.core.model import Entry, Event, RegistryPut, Status
from homing.testing.builders import (
    HOUR_MS,
    a_message,
    a_notification,
    a_submission,
    an_id,
    dead,
    sent,
)
from homing.testing.store_suite.harness import Harness
from homing.testing.store_suite.steps import counts, status_of, take

UNWRITABLE: dict[str, Any] = {"value": object()}
REFUSAL = (TypeError, ValueError, StoreError)


class WholenessTests:
    """Tests of calls with a part that cannot be written."""

    async def test_a_batch_with_a_message_that_cannot_be_stored_is_not_accepted(
        self, harness: Harness
    ) -> None:
        store = harness.store
        good = a_submission(key="k")
        bad = a_submission(a_notification(message=a_message(**UNWRITABLE)))
        with pytest.raises(REFUSAL):
            await store.accept([good, bad])
        assert await counts(store, None) == {}
        [answer] = await store.accept([good])
        assert not answer.duplicates

    async def test_a_settlement_that_cannot_be_written_leaves_its_batch_to_be_settled_again(
        self, harness: Harness
    ) -> None:
        store = harness.store
        store.subscribe(["StatusChanged"])
        good, bad = await take(store), await take(store)
        put = RegistryPut(tenant="default", kind="device", key="d", value=UNWRITABLE)
        before = await store.tallies("default")
        with pytest.raises(REFUSAL):
            await store.settle([sent(good), dead(bad, puts=(put,))])
        assert await store.tallies("default") == before
        assert len(await store.outbox("relay", 100, HOUR_MS)) == 2  # the events of the two acceptances
        assert (await store.settle([sent(good)])).applied == (good.id,)
        assert await status_of(store, bad.id) is Status.SENDING

    async def test_events_that_cannot_be_written_take_none_with_them(self, harness: Harness) -> None:
        store = harness.store
        store.subscribe([ALERT])
        good = Event(id=an_id(), name=ALERT, tenant="default", at=1)
        bad = Event(id=an_id(), name=ALERT, tenant="default", at=1, payload=UNWRITABLE)
        with pytest.raises(REFUSAL):
            await store.emit([good, bad])
        assert await store.outbox("relay", 10, HOUR_MS) == ()

    async def test_entries_that_cannot_be_written_take_none_with_them(self, harness: Harness) -> None:
        store = harness.store
        good = Entry(tenant="default", kind="device", key="a", value={})
        bad = Entry(tenant="default", kind="device", key="b", value=UNWRITABLE)
        with pytest.raises(REFUSAL):
            await store.put([good, bad], who="ada")
        assert await store.get_many("default", "device", ["a", "b"]) == {}
