"""Tests of the registry: small versioned documents by tenant, kind and key."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from homing.core.access.audit import AUDIT
from homing.core.errors import StoreError
from homing.core.ports.stores import Backend, Entry
from homing.testing.builders import HOUR_MS
from homing.testing.store_suite.harness import Harness, close_to


class RegistryTests:
    """Tests of `get_many`, `list_entries`, `put` and `delete`."""

    async def test_an_entry_reads_back_as_it_was_put(self, harness: Harness) -> None:
        store = harness.store
        value = {"token": "abc", "active": True, "deep": {"list": [1, 2.5, None, "ü"]}}
        stored = await store.put([_entry("k", value)], who="ada")
        assert stored is not None
        [entry] = stored
        assert (entry.tenant, entry.kind, entry.key, entry.value) == ("default", "device", "k", value)
        assert (entry.version, entry.updated_by) == (1, "ada")
        assert close_to(entry.updated_at, await store.now_ms())
        assert await store.get_many("default", "device", ["k"]) == {"k": entry}

    async def test_get_many_omits_missing_entries(self, harness: Harness) -> None:
        store = harness.store
        await store.put([_entry("a"), _entry("b")], who="ada")
        found = await store.get_many("default", "device", ["a", "b", "c"])
        assert sorted(found) == ["a", "b"]
        assert await store.get_many("default", "device", []) == {}

    async def test_each_write_raises_the_version(self, harness: Harness) -> None:
        store = harness.store
        await _put(store, _entry("k", {"n": 1}))
        await harness.advance(HOUR_MS)
        entry = await _put(store, _entry("k", {"n": 2}, version=1), who="bob")
        assert (entry.version, entry.value, entry.updated_by) == (2, {"n": 2}, "bob")
        assert close_to(entry.updated_at, await store.now_ms())

    async def test_a_put_with_an_old_version_is_refused(self, harness: Harness) -> None:
        store = harness.store
        await _put(store, _entry("k", {"n": 1}))
        await _put(store, _entry("k", {"n": 2}, version=1))
        for version in (0, 1, 3):
            assert await store.put([_entry("k", {"n": 3}, version=version)], who="ada") is None
        assert (await store.get_many("default", "device", ["k"]))["k"].value == {"n": 2}

    async def test_a_missing_entry_has_version_zero(self, harness: Harness) -> None:
        store = harness.store
        assert await store.put([_entry("k", version=1)], who="ada") is None
        assert await store.get_many("default", "device", ["k"]) == {}
        assert (await _put(store, _entry("k", version=0))).version == 1

    async def test_version_minus_one_overwrites_any_version(self, harness: Harness) -> None:
        store = harness.store
        assert (await _put(store, _entry("k", {"n": 1}, version=-1))).version == 1
        assert (await _put(store, _entry("k", {"n": 2}, version=-1))).version == 2
        assert (await store.get_many("default", "device", ["k"]))["k"].value == {"n": 2}

    async def test_a_put_is_all_or_nothing(self, harness: Harness) -> None:
        store = harness.store
        await _put(store, _entry("b"))
        assert await store.put([_entry("a"), _entry("b"), _entry("c")], who="ada") is None
        assert sorted(await store.get_many("default", "device", ["a", "b", "c"])) == ["b"]

    async def test_a_put_sees_its_own_writes(self, harness: Harness) -> None:
        store = harness.store
        assert await store.put([_entry("k", {"n": 1}), _entry("k", {"n": 2})], who="ada") is None
        assert await store.get_many("default", "device", ["k"]) == {}
        stored = await store.put([_entry("k", {"n": 1}), _entry("k", {"n": 2}, version=1)], who="ada")
        assert stored is not None
        assert [entry.version for entry in stored] == [1, 2]
        assert (await store.get_many("default", "device", ["k"]))["k"].value == {"n": 2}

    async def test_a_put_returns_results_in_order(self, harness: Harness) -> None:
        stored = await harness.store.put([_entry("b"), _entry("a")], who="ada")
        assert stored is not None
        assert [entry.key for entry in stored] == ["b", "a"]

    async def test_of_two_writers_with_the_same_version_one_wins(self, harness: Harness) -> None:
        stores = (harness.store, await harness.second())
        await _put(harness.store, _entry("k", {"n": 0}))
        answers = await asyncio.gather(
            *(stores[n % 2].put([_entry("k", {"n": n}, version=1)], who=f"w-{n}") for n in range(6))
        )
        winners = [answer for answer in answers if answer is not None]
        assert len(winners) == 1
        assert (await harness.store.get_many("default", "device", ["k"]))["k"] == winners[0][0]

    async def test_entries_are_listed_by_key(self, harness: Harness) -> None:
        store = harness.store
        keys = ["b", "a:2", "a:1", "c", "a"]
        await store.put([_entry(key) for key in keys], who="ada")

        async def listed(**options: Any) -> list[str]:
            return [entry.key for entry in await store.list_entries("default", "device", **options)]

        assert await listed() == ["a", "a:1", "a:2", "b", "c"]
        assert await listed(limit=2) == ["a", "a:1"]
        assert await listed(after="a:1") == ["a:2", "b", "c"]
        assert await listed(prefix="a:") == ["a:1", "a:2"]
        assert await listed(prefix="a:", after="a:1") == ["a:2"]
        assert await listed(prefix="a", limit=2) == ["a", "a:1"]
        assert await listed(prefix="x") == []
        assert await listed(after="c") == []

    async def test_a_prefix_is_taken_literally(self, harness: Harness) -> None:
        store = harness.store
        await store.put([_entry(key) for key in ("a%b", "axb", "a_b", "A%b", "é1")], who="ada")
        for prefix in ("a%", "a_", "A", "é"):
            found = await store.list_entries("default", "device", prefix=prefix)
            assert len(found) == 1
            assert found[0].key.startswith(prefix)

    async def test_pages_of_entries_cover_all_entries(self, harness: Harness) -> None:
        store = harness.store
        keys = [f"k-{number:03}" for number in range(25)]
        await store.put([_entry(key) for key in keys], who="ada")
        seen: list[str] = []
        while page := await store.list_entries("default", "device", after=seen[-1] if seen else "", limit=10):
            seen += [entry.key for entry in page]
        assert seen == keys

    async def test_tenants_and_kinds_have_separate_entries(self, harness: Harness) -> None:
        store = harness.store
        entries = [
            _entry("k", {"n": 1}),
            replace(_entry("k", {"n": 2}), tenant="other"),
            replace(_entry("k", {"n": 3}), kind="preference"),
        ]
        await store.put(entries, who="ada")
        assert (await store.get_many("default", "device", ["k"]))["k"].value == {"n": 1}
        assert (await store.get_many("other", "device", ["k"]))["k"].value == {"n": 2}
        assert (await store.get_many("default", "preference", ["k"]))["k"].value == {"n": 3}
        assert await store.get_many("other", "preference", ["k"]) == {}
        assert len(await store.list_entries("default", "device")) == 1
        assert await store.delete("other", "preference", ["k"]) == 0
        assert await store.delete("other", "device", ["k"]) == 1
        assert len(await store.list_entries("default", "device")) == 1

    async def test_a_deleted_entry_is_gone(self, harness: Harness) -> None:
        store = harness.store
        await store.put([_entry("a"), _entry("b"), _entry("c")], who="ada")
        assert await store.delete("default", "device", ["a", "c", "x"]) == 2
        assert [entry.key for entry in await store.list_entries("default", "device")] == ["b"]
        assert await store.delete("default", "device", ["a"]) == 0
        assert (await _put(store, _entry("a", version=0))).key == "a"

    async def test_changing_a_read_entry_does_not_change_the_store(self, harness: Harness) -> None:
        store = harness.store
        value = {"deep": {"n": 1}}
        stored = await _put(store, _entry("k", value))
        value["deep"]["n"] = 2
        stored.value["deep"]["n"] = 3
        [listed] = await store.list_entries("default", "device")
        listed.value.clear()
        assert (await store.get_many("default", "device", ["k"]))["k"].value == {"deep": {"n": 1}}

    async def test_audit_entries_are_neither_overwritten_nor_deleted(self, harness: Harness) -> None:
        store = harness.store
        noted = replace(_entry("k", {"who": "ada"}), kind=AUDIT)
        await _put(store, noted)
        assert await store.put([replace(noted, value={"who": "eve"})], who="eve") is None
        for version in (1, -1):
            with pytest.raises(StoreError, match="cannot be changed or deleted"):
                await store.put([_entry("other"), replace(noted, version=version)], who="eve")
        with pytest.raises(StoreError, match="cannot be changed or deleted"):
            await store.delete("default", AUDIT, ["k"])
        [kept] = await store.list_entries("default", AUDIT)
        assert (kept.value, kept.version) == ({"who": "ada"}, 1)
        assert await store.get_many("default", "device", ["other"]) == {}


def _entry(key: str, value: dict[str, Any] | None = None, *, version: int = 0) -> Entry:
    return Entry(tenant="default", kind="device", key=key, value=value or {"of": key}, version=version)


async def _put(store: Backend, entry: Entry, who: str = "ada") -> Entry:
    stored = await store.put([entry], who=who)
    assert stored is not None, "the stored entry has another version"
    return stored[0]
