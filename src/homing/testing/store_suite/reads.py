"""Tests of reads: filters, pages, and that each tenant sees only its own notifications."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from homing.core.errors import InvalidRequest
from homing.core.lifecycle.commands import Command, CommandName
from homing.core.notifications import (
    Channel,
    Content,
    Filter,
    Message,
    Mode,
    Notification,
    Reason,
    Recipient,
    Status,
    lane_of,
)
from homing.core.ports.stores import SupportsMetadataIndexes
from homing.testing.builders import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    a_message,
    a_notification,
    a_receipt,
    an_id,
    dead,
    retry_in,
    sent,
)
from homing.testing.store_suite.harness import (
    Harness,
    accept,
    accept_and_claim,
    accept_and_send,
    accept_one,
    claim_all,
    claim_one,
    get_notification,
    list_all,
)


class ReadTests:
    """Tests of `get`, `list` and `waiting`, and of all reads of an empty store."""

    async def test_get_returns_none_for_an_unknown_id(self, harness: Harness) -> None:
        store = harness.store
        assert await store.get("default", an_id()) is None
        assert await store.get("default", "not even an id") is None

    async def test_missing_ids_are_found_whatever_tenant_they_belong_to(self, harness: Harness) -> None:
        store = harness.store
        stored, unknown = await accept_one(store, tenant="other"), an_id()
        assert await store.find_missing([stored, unknown, "no id"]) == {unknown, "no id"}
        assert await store.find_missing([]) == frozenset()

    async def test_the_history_stays_the_same_while_nothing_is_lost(self, harness: Harness) -> None:
        store = harness.store
        await accept_one(store)
        before = store.history
        await store.settle([sent(await accept_and_claim(store))])
        assert store.history == before

    async def test_an_empty_store_reads_as_empty(self, harness: Harness) -> None:
        store = harness.store
        page = await store.list("default", Filter())
        assert (page.items, page.cursor) == ((), None)
        assert (await store.waiting("default")).items == ()
        assert await store.count_due("default") == await store.count_due(None) == {}
        assert await store.tallies("default") == await store.tallies(None) == ()
        assert await store.error_groups("default") == ()
        assert await store.roll_ups(None, since_ms=DAY_MS) == ()
        assert await store.oldest_retry_at(None) is None
        assert await store.tenants() == ()

    async def test_a_history_has_attempts_and_causes(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        await store.settle([dead(claim)])
        await store.amend("default", [claim.id], Command(name=CommandName.RETRY, who="ada", why="fixed"))
        await store.settle([sent(await claim_one(store), "m-1")])
        await store.receipt([a_receipt("m-1")])
        history = await store.get("default", claim.id)
        assert history is not None
        assert [(a.number, a.outcome.value) for a in history.attempts] == [(1, "transient"), (2, "accepted")]
        assert [(c.kind, c.name, c.who, c.why) for c in history.causes] == [
            ("command", "retry", "ada", "fixed"),
            ("receipt", "delivered", "sendgrid", ""),
        ]
        steps = [(c.status_before, c.status_after) for c in history.causes]
        assert steps == [(Status.FAILED, Status.RETRYING), (Status.SENT, Status.DELIVERED)]

    async def test_lists_are_newest_first(self, harness: Harness) -> None:
        store = harness.store
        news = [a_notification() for _ in range(5)]
        await accept(store, *news[3:])
        await accept(store, *news[:3])
        page = await store.list("default", Filter())
        assert [item.id for item in page.items] == [new.id for new in reversed(news)]
        assert page.cursor is None

    async def test_pages_can_begin_with_the_oldest(self, harness: Harness) -> None:
        store = harness.store
        ids = sorted([await accept_one(store, a_notification()) for _ in range(8)])
        found: list[str] = []
        cursor = None
        for _ in range(3):
            page = await store.list("default", Filter(), limit=3, cursor=cursor, oldest_first=True)
            found += [n.id for n in page.items]
            cursor = page.cursor
        assert (found, cursor) == (ids, None)
        late = await store.list("default", Filter(), cursor="0", oldest_first=True)
        assert [n.id for n in late.items] == ids

    async def test_pages_neither_skip_nor_repeat_rows(self, harness: Harness) -> None:
        store = harness.store
        ids = [new.id for new in (await _many(harness, 7))]
        seen: list[str] = []
        cursor = None
        for size in (3, 3, 1):
            page = await store.list("default", Filter(), limit=3, cursor=cursor)
            assert len(page.items) == size
            seen += [item.id for item in page.items]
            cursor = page.cursor
            await accept_one(store)  # a newer row must not shift the next page
        assert cursor is None
        assert seen == ids[::-1]

    async def test_a_full_last_page_ends_the_list(self, harness: Harness) -> None:
        store = harness.store
        await _many(harness, 4)
        first = await store.list("default", Filter(), limit=2)
        assert first.cursor is not None
        last = await store.list("default", Filter(), limit=2, cursor=first.cursor)
        assert len(last.items) == 2
        rest = (
            [] if last.cursor is None else (await store.list("default", Filter(), cursor=last.cursor)).items
        )
        assert not rest

    async def test_a_page_ends_early_if_its_rows_are_large(self, harness: Harness) -> None:
        """Attachments make messages large, so a page must fit into memory. No row may be skipped."""
        store = harness.store
        large = Message(
            recipient=Recipient(email="ada@example.com"), content=Content(body="x" * (3 * 1024 * 1024))
        )
        ids = [await accept_one(store, a_notification(message=large)) for _ in range(5)]
        seen: list[str] = []
        cursor = None
        while True:
            page = await store.list("default", Filter(), limit=4, cursor=cursor)
            assert 1 <= len(page.items) <= 2, "two of these rows fill a page"
            seen += [n.id for n in page.items]
            cursor = page.cursor
            if cursor is None:
                break
        assert sorted(seen) == sorted(ids)
        assert len((await store.waiting("default", limit=5)).items) == 2

    async def test_the_filter_applies_to_every_page(self, harness: Harness) -> None:
        store = harness.store
        wanted = []
        for number in range(9):
            id = await accept_one(store, a_notification(type="alarm" if number % 3 else "news"))
            wanted += [id] if number % 3 else []
        first = await store.list("default", Filter(type="alarm"), limit=4)
        rest = await store.list("default", Filter(type="alarm"), limit=4, cursor=first.cursor)
        assert [item.id for item in (*first.items, *rest.items)] == wanted[::-1]

    @pytest.mark.parametrize(
        "name",
        [
            "statuses",
            "channel",
            "type",
            "provider",
            "batch_id",
            "address",
            "reason",
            "error_code",
            "acknowledged",
        ],
    )
    async def test_a_list_has_only_matching_rows(self, harness: Harness, name: str) -> None:
        store = harness.store
        special = a_notification(channel=Channel.SMS, type="alarm", provider="twilio", address="+4930123456")
        answer = await accept(store, special)
        claim = await claim_one(store, lane_of(Mode.STANDARD, Channel.SMS))
        await store.settle([dead(claim, reason=Reason.BAD_RECIPIENT, error_code="21211")])
        await store.amend("default", [claim.id], Command(name=CommandName.ACKNOWLEDGE, who="ada"))
        others = [(await _many(harness, 1))[0].id]
        ordinary = await accept_and_claim(store)
        await store.settle([retry_in(ordinary, HOUR_MS)])
        others.append(ordinary.id)
        filters = {
            "statuses": Filter(statuses=(Status.FAILED, Status.EXPIRED)),
            "channel": Filter(channel=Channel.SMS),
            "type": Filter(type="alarm"),
            "provider": Filter(provider="twilio"),
            "batch_id": Filter(batch_id=answer.batch_id),
            "address": Filter(address="+4930123456"),
            "reason": Filter(reason=Reason.BAD_RECIPIENT),
            "error_code": Filter(error_code="21211"),
            "acknowledged": Filter(acknowledged=True),
        }
        assert [item.id for item in await list_all(store, filter=filters[name])] == [special.id]
        assert len(await list_all(store)) == 1 + len(others)
        unread = await list_all(store, filter=Filter(acknowledged=False))
        assert [item.id for item in unread] == others[::-1]

    @pytest.mark.parametrize("recipient_id", ["user-7", 'a "quoted" \\ id', "ünï", "x" * 250, ""])
    async def test_a_list_can_be_limited_to_a_recipient(self, harness: Harness, recipient_id: str) -> None:
        store = harness.store

        def to(id: str | None) -> Message:
            return Message(recipient=Recipient(id=id, email="a@example.com"), content=Content(body="."))

        mine = [a_notification(message=to(recipient_id)) for _ in range(3)]
        others = [
            a_notification(message=to(id)) for id in (f"{recipient_id}2", None, recipient_id[:-1] or "y")
        ]
        await accept(store, *mine, *others)
        await accept(store, a_notification(message=to(recipient_id)), tenant="other")
        found = await list_all(store, filter=Filter(recipient_id=recipient_id))
        assert [one.id for one in found] == sorted((one.id for one in mine), reverse=True)
        first = await store.list("default", Filter(recipient_id=recipient_id), limit=2)
        rest = await store.list("default", Filter(recipient_id=recipient_id), limit=2, cursor=first.cursor)
        assert [one.id for one in (*first.items, *rest.items)] == [one.id for one in found]
        assert rest.cursor is None

    async def test_a_list_can_be_limited_to_a_providers_message(self, harness: Harness) -> None:
        store = harness.store
        claims = [await accept_and_claim(store) for _ in range(3)]
        await store.settle([sent(claim, f"m-{n}") for n, claim in enumerate(claims)])
        await store.settle([sent(await accept_and_claim(store, tenant="other"), "m-other")])
        found = await list_all(store, filter=Filter(provider_message_id="m-1"))
        assert [one.id for one in found] == [claims[1].id]
        assert await list_all(store, filter=Filter(provider_message_id="m-other")) == []
        assert await list_all(store, filter=Filter(provider_message_id="m-")) == []

    async def test_a_list_can_be_limited_to_the_beginning_of_an_id(self, harness: Harness) -> None:
        store = harness.store
        ids = sorted([await accept_one(store) for _ in range(5)])
        theirs = await accept_one(store, tenant="other")
        for length in (10, 24, 36):
            prefix = ids[2][:length]
            found = [one.id for one in await list_all(store, filter=Filter(id_prefix=prefix))]
            assert found == [id for id in reversed(ids) if id.startswith(prefix)]
        assert await list_all(store, filter=Filter(id_prefix=theirs)) == []
        assert await list_all(store, filter=Filter(id_prefix="no id")) == []

    @pytest.mark.parametrize("oldest_first", [False, True])
    async def test_a_scan_compares_a_limited_number_and_goes_on_at_its_cursor(
        self, harness: Harness, oldest_first: bool
    ) -> None:
        store = harness.store
        ids = sorted([await accept_one(store) for _ in range(7)])
        wanted = await accept_one(store, a_notification(type="alarm"))
        order = sorted([*ids, wanted], reverse=not oldest_first)
        cursor, found, pages = None, [], 0
        while True:
            page = await store.list(
                "default", Filter(type="alarm"), cursor=cursor, scan=3, oldest_first=oldest_first
            )
            found += [one.id for one in page.items]
            pages, cursor = pages + 1, page.cursor
            assert page.complete is (cursor is None)
            if cursor is None:
                break
            assert cursor == order[3 * pages - 1]
        assert (found, pages) == ([wanted], 3)

    async def test_a_page_that_is_full_ends_a_scan_early(self, harness: Harness) -> None:
        store = harness.store
        ids = sorted([await accept_one(store) for _ in range(6)], reverse=True)
        page = await store.list("default", Filter(type="order_confirmed"), limit=2, scan=4)
        assert ([one.id for one in page.items], page.cursor, page.complete) == (ids[:2], ids[1], True)
        whole = await store.list("default", Filter(type="order_confirmed"), limit=9, scan=6)
        assert len(whole.items) == 6
        last = await store.list("default", Filter(), limit=9, scan=7)
        assert (len(last.items), last.cursor, last.complete) == (6, None, True)

    async def test_every_field_of_a_filter_must_match(self, harness: Harness) -> None:
        store = harness.store
        both = a_notification(type="alarm", address="x@example.com")
        await accept(store, both, a_notification(type="alarm"), a_notification(address="x@example.com"))
        found = await list_all(store, filter=Filter(type="alarm", address="x@example.com"))
        assert [item.id for item in found] == [both.id]

    async def test_a_list_can_be_limited_by_metadata(self, harness: Harness) -> None:
        store = harness.store
        metadata: dict[str, dict[str, Any]] = {
            "text": {"entry_id": "42", 'a key, with "quotes" = and dots.': "é"},
            "number": {"entry_id": 42, "paid": True, "price": 1.5},
            "other": {"entry_id": 421, "paid": False, "deep": {"entry_id": 42}, "list": [42]},
            "none": {},
        }
        ids = {
            name: await accept_one(store, a_notification(message=a_message(**one)))
            for name, one in metadata.items()
        }
        names = {id: name for name, id in ids.items()}

        async def found(**wanted: str) -> set[str]:
            return {names[n.id] for n in await list_all(store, filter=Filter(metadata=wanted))}

        assert await found(entry_id="42") == {"text", "number"}
        assert await found(entry_id="421") == {"other"}
        assert await found(entry_id="42", paid="true") == {"number"}
        assert await found(paid="false") == {"other"}
        assert await found(price="1.5") == {"number"}
        assert await found(**{'a key, with "quotes" = and dots.': "é"}) == {"text"}
        for nothing in ({"entry_id": "4"}, {"deep": "42"}, {"list": "42"}, {"missing": ""}, {"price": "15"}):
            assert await found(**nothing) == set()
        cancel = Command(name=CommandName.CANCEL, who="ada")
        result = await store.amend("default", Filter(metadata={"entry_id": "42"}), cancel)
        assert set(result.applied) == {ids["text"], ids["number"]}

    async def test_a_number_in_the_metadata_is_found_by_its_text_in_json(self, harness: Harness) -> None:
        store = harness.store
        numbers: dict[str, Any] = {
            "0.30000000000000004": 0.1 + 0.2,
            "1234567.8912345679": 1234567.8912345679,
            "1e16": 1e16,
            "1e-7": 1e-7,
            "5.0": 5.0,
            "-0.0": -0.0,
            "9007199254740993": 9_007_199_254_740_993,
            "12345678901234567890": 12_345_678_901_234_567_890,
        }
        id = await accept_one(store, a_notification(message=a_message(**numbers)))
        for text in numbers:
            found = await list_all(store, filter=Filter(metadata={text: text}))
            assert [item.id for item in found] == [id], text
        for key, other in (("5.0", "5"), ("-0.0", "0.0"), ("1e16", "1.0e+16"), ("1e-7", "1e-07")):
            assert not await list_all(store, filter=Filter(metadata={key: other})), key

    async def test_a_declared_metadata_key_is_found_without_a_scan(self, harness: Harness) -> None:
        store = harness.store
        values: dict[str, Any] = {
            "text": "42",
            "number": 42,
            "long": "4" * 400,
            "quoted": 'a "b" é',
            "yes": True,
        }
        ids = {
            name: await accept_one(store, a_notification(message=a_message(order=value, other="x")))
            for name, value in values.items()
        }
        await accept_one(store, a_notification(message=a_message(order={"a": 42}, **{"order.no": "42"})))
        if isinstance(store, SupportsMetadataIndexes):
            await store.index_metadata(("order", "order.no"))
            await store.index_metadata(("order",))
        later = [await accept_one(store, a_notification(message=a_message(order="43"))) for _ in range(3)]
        ids["later"] = await accept_one(store, a_notification(message=a_message(order="42")))
        await accept(store, a_notification(message=a_message(order="42")), tenant="b")
        await accept_one(store)

        async def found(value: str, **others: Any) -> list[str]:
            page = await store.list("default", Filter(metadata={"order": value}, **others), scan=2)
            assert page.complete
            return [one.id for one in page.items]

        assert await found("42") == sorted((ids["text"], ids["number"], ids["later"]), reverse=True)
        assert await found("42", channel=Channel.SMS) == []
        assert await found("43") == sorted(later, reverse=True)
        assert await found("4" * 400) == [ids["long"]]
        assert await found("4" * 401) == []
        assert await found('a "b" é') == [ids["quoted"]]
        assert await found("true") == [ids["yes"]]
        first = await store.list("default", Filter(metadata={"order": "43"}), limit=2, scan=2)
        assert first.cursor == sorted(later)[1]
        second = await store.list("default", Filter(metadata={"order": "43"}), cursor=first.cursor, scan=2)
        assert [one.id for one in second.items] == sorted(later)[:1]
        if isinstance(store, SupportsMetadataIndexes):
            undeclared = await store.list("default", Filter(metadata={"other": "x"}), scan=2)
            assert (undeclared.items, undeclared.complete) == ((), False)
            await store.index_metadata(())
            dropped = await store.list("default", Filter(metadata={"order": "true"}), scan=2)
            assert (dropped.items, dropped.complete) == ((), False)
            for key in ('a"b', "", "a b", "é", "x" * 65):
                with pytest.raises(InvalidRequest):
                    await store.index_metadata((key,))

    async def test_objects_and_arrays_in_the_metadata_are_never_found(self, harness: Harness) -> None:
        store = harness.store
        await accept_one(store, a_notification(message=a_message(object={"a": 1}, array=[1], nothing=None)))
        for key, text in (("object", '{"a":1}'), ("array", "[1]"), ("nothing", "null"), ("nothing", "")):
            assert not await list_all(store, filter=Filter(metadata={key: text})), key

    async def test_a_list_can_be_limited_to_a_time_range(self, harness: Harness) -> None:
        store = harness.store
        ids = []
        for _ in range(3):
            ids.append(await accept_one(store))
            await harness.advance(HOUR_MS)
        middle = (await get_notification(store, ids[1])).created_at
        tick = timedelta(milliseconds=1)

        async def found(filter: Filter) -> list[str]:
            return [item.id for item in await list_all(store, filter=filter)]

        assert await found(Filter(created_from=middle)) == [ids[2], ids[1]]
        assert await found(Filter(created_from=middle + tick)) == [ids[2]]
        assert await found(Filter(created_until=middle)) == [ids[0]]
        assert await found(Filter(created_until=middle + tick)) == [ids[1], ids[0]]
        assert await found(Filter(created_from=middle, created_until=middle + tick)) == [ids[1]]

    async def test_waiting_rows_are_listed_soonest_first(self, harness: Harness) -> None:
        store = harness.store
        now = await store.now_ms()
        late = await accept_one(store, a_notification(send_at=now + 2 * HOUR_MS))
        claim = await accept_and_claim(store)
        await store.settle([retry_in(claim, HOUR_MS)])
        due = await accept_one(store)
        in_flight = a_notification(lane="other", channel=Channel.SMS)
        await accept(store, in_flight)
        await claim_all(store, "other")
        await accept_and_send(store, "m-1", a_notification(channel=Channel.PUSH))

        async def waiting(ready: bool | None = None, limit: int = 50) -> list[str]:
            page = await store.waiting("default", ready=ready, limit=limit)
            return [item.id for item in page.items]

        assert await waiting() == [due, claim.id, late]
        assert await waiting(limit=2) == [due, claim.id]
        assert await waiting(True) == [due]
        assert await waiting(False) == [claim.id, late]
        await harness.advance(HOUR_MS + MINUTE_MS)
        assert await waiting(True) == [due, claim.id]

    async def test_without_a_tenant_the_waiting_rows_of_all_tenants_are_listed(
        self, harness: Harness
    ) -> None:
        store = harness.store
        now = await store.now_ms()
        late = await accept_one(store, a_notification(send_at=now + HOUR_MS), tenant="a")
        soon = await accept_one(store, a_notification(send_at=now + MINUTE_MS), tenant="b")
        due = await accept_one(store, tenant="c")
        assert [item.id for item in (await store.waiting(None)).items] == [due, soon, late]
        assert [item.id for item in (await store.waiting(None, ready=False, limit=1)).items] == [soon]
        [found] = (await store.waiting(None, ready=True)).items
        assert (found.id, found.tenant) == (due, "c")

    async def test_no_read_shows_another_tenants_notification(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store, tenant="a")
        await store.settle([dead(claim)])
        retry = await accept_and_claim(store, tenant="a")
        await store.settle([retry_in(retry, 0)])
        await accept_one(store, a_notification(send_at=await store.now_ms() + HOUR_MS), tenant="a")
        assert await store.get("b", claim.id) is None
        assert (await store.list("b", Filter())).items == ()
        assert (await store.list("b", Filter(), cursor=an_id())).items == ()
        assert (await store.waiting("b")).items == ()
        assert await store.count_due("b") == {}
        assert await store.tallies("b") == ()
        assert await store.error_groups("b") == ()
        assert await store.roll_ups("b", since_ms=DAY_MS) == ()
        assert await store.oldest_retry_at("b") is None
        assert len((await store.list("a", Filter())).items) == 3


async def _many(harness: Harness, number: int) -> list[Notification]:
    """Accepts `number` notifications that are not due, and returns them oldest first."""
    store = harness.store
    at = await store.now_ms() + DAY_MS
    answer = await accept(store, *(a_notification(send_at=at) for _ in range(number)))
    return [await get_notification(store, id) for id in answer.ids]
