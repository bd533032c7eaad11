"""The audit trail's hash chain: every later change to it is detected and located."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from homing.core.access.audit import (
    AUDIT,
    GENESIS,
    AuditEntry,
    ChainFault,
    ChainFaultKind,
    ChainHead,
    ChainVerifier,
    append_to_chain,
    audit_key,
    build_audit_action,
    reject_audit_rewrite,
)
from homing.core.errors import StoreError
from homing.core.ports.stores import Entry

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
DEEDS = st.builds(
    build_audit_action,
    st.integers(0, 2**40),
    st.text(),
    st.text(),
    st.text(),
    st.dictionaries(st.text(), JSON, max_size=3),
)


def chain(count: int, tenant: str = "acme") -> list[AuditEntry]:
    deeds = [
        build_audit_action(1000 + n, f"key:{n}", "policy.set", f"rule {n}", {"n": n}) for n in range(count)
    ]
    return list(append_to_chain(tenant, ChainHead(), deeds))


def filed(entry: AuditEntry, number: int | None = None) -> Entry:
    """Returns the entry as a store would return it."""
    value = msgspec.json.decode(msgspec.json.encode(entry))
    key = audit_key(entry.number if number is None else number)
    return Entry(tenant=entry.tenant, kind=AUDIT, key=key, value=value, version=1)


def head_of(entries: list[AuditEntry]) -> ChainHead:
    return ChainHead(entries[-1].number, entries[-1].hash) if entries else ChainHead()


def faults(stored: list[Entry], head: ChainHead, tenant: str = "acme", page: int = 3) -> list[ChainFault]:
    walk = ChainVerifier(tenant, head)
    stored = sorted(stored, key=lambda entry: entry.key)
    found = [fault for at in range(0, len(stored), page) for fault in walk.page(stored[at : at + page])]
    return found + walk.end()


@given(st.lists(DEEDS, max_size=8))
def test_an_untouched_chain_is_valid_for_any_entries(deeds: list[Any]) -> None:
    entries = list(append_to_chain("acme", ChainHead(), deeds))
    assert faults([filed(entry) for entry in entries], head_of(entries)) == []
    assert [entry.previous for entry in entries] == [GENESIS, *(entry.hash for entry in entries)][
        : len(entries)
    ]


@given(st.integers(1, 12), st.data())
def test_a_changed_field_is_detected_at_its_entry(count: int, data: st.DataObject) -> None:
    entries = chain(count)
    at = data.draw(st.integers(0, count - 1))
    name = data.draw(st.sampled_from(["at", "who", "action", "target", "detail", "previous", "hash"]))
    other = {"at": 7, "detail": {"n": "?"}}.get(name, "f" * 64)
    stored = [filed(entry) for entry in entries]
    stored[at].value[name] = other
    [fault] = faults(stored, head_of(entries))
    assert (fault.kind, fault.number) == (ChainFaultKind.CHANGED, at + 1)


@given(st.integers(1, 12), st.data())
def test_a_changed_entry_with_a_recomputed_hash_is_detected_at_its_entry(
    count: int, data: st.DataObject
) -> None:
    entries = chain(count)
    at = data.draw(st.integers(0, count - 1))
    forged = replace(entries[at], who="eve")
    stored = [filed(entry) for entry in entries]
    stored[at] = filed(replace(forged, hash=forged.computed()))
    [fault] = faults(stored, head_of(entries))
    assert (fault.kind, fault.number) == (ChainFaultKind.CHANGED, at + 1)


@given(st.integers(1, 12), st.data())
def test_removed_entries_are_detected_and_counted(count: int, data: st.DataObject) -> None:
    entries = chain(count)
    gone = data.draw(st.sets(st.integers(1, count), min_size=1))
    found = faults([filed(entry) for entry in entries if entry.number not in gone], head_of(entries))
    assert {fault.kind for fault in found} == {ChainFaultKind.REMOVED}
    told = {n for fault in found for n in range(fault.number, (fault.until or fault.number) + 1)}
    assert told == gone


@given(st.integers(2, 12), st.data())
def test_swapped_entries_are_both_detected(count: int, data: st.DataObject) -> None:
    entries = chain(count)
    a, b = data.draw(st.lists(st.integers(0, count - 1), min_size=2, max_size=2, unique=True))
    stored = [filed(entry) for entry in entries]
    stored[a], stored[b] = filed(entries[b], a + 1), filed(entries[a], b + 1)
    found = faults(stored, head_of(entries))
    assert {(fault.kind, fault.number) for fault in found} == {
        (ChainFaultKind.REORDERED, a + 1),
        (ChainFaultKind.REORDERED, b + 1),
    }


@given(st.integers(0, 12), st.data())
def test_an_inserted_entry_is_detected_at_any_position(count: int, data: st.DataObject) -> None:
    """Later entries move up by one, as an attacker would have to do, with or without recomputed hashes."""
    entries = chain(count)
    at = data.draw(st.integers(0, count))
    before = entries[at - 1].hash if at else GENESIS
    extra = AuditEntry(
        tenant="acme", number=at + 1, at=1, who="eve", action="x.y", target="", detail={}, previous=before
    )
    extra = replace(extra, hash=extra.computed())
    moved = [replace(entry, number=entry.number + 1) for entry in entries[at:]]
    if data.draw(st.booleans()):
        moved = [replace(entry, hash=entry.computed()) for entry in moved]
    assert faults([filed(one) for one in [*entries[:at], extra, *moved]], head_of(entries))


def test_entries_beyond_the_head_or_without_a_number_count_as_inserted() -> None:
    entries = chain(3)
    stored = [filed(entry) for entry in entries]
    [beyond] = faults(stored, head_of(entries[:2]))
    assert (beyond.kind, beyond.number) == (ChainFaultKind.INSERTED, 3)
    strange = [replace(stored[0], key="elsewhere"), replace(stored[0], key=audit_key(0))]
    assert [fault.kind for fault in faults([*stored, *strange], head_of(entries))] == [
        ChainFaultKind.INSERTED
    ] * 2


def test_an_entry_of_another_chain_is_not_accepted_in_this_one() -> None:
    mine, theirs = chain(3), chain(3, "other")
    stored = [filed(mine[0]), filed(theirs[1]), filed(mine[2])]
    [fault] = faults(stored, head_of(mine))
    assert (fault.kind, fault.number) == (ChainFaultKind.REORDERED, 2)


def test_a_completely_rewritten_chain_is_detected_by_a_hash_kept_elsewhere() -> None:
    entries, forged = chain(5), chain(5)
    forged = list(append_to_chain("acme", ChainHead(), [build_audit_action(1, "eve", "x.y", "", {})] * 5))
    walk = ChainVerifier("acme", head_of(entries))
    walk.watch([entries[2].hash])
    assert walk.page([filed(entry) for entry in reversed(entries)]) == []
    assert walk.seen == {entries[2].hash: 3}
    walk = ChainVerifier("acme", head_of(forged))
    walk.watch([entries[2].hash])
    assert walk.page([filed(entry) for entry in reversed(forged)]) == []
    assert walk.seen == {}


@given(DEEDS)
def test_an_entry_reads_back_the_same_from_any_store(noted: Any) -> None:
    [entry] = append_to_chain("acme", ChainHead(), [noted])
    for codec in (msgspec.json, msgspec.msgpack):
        back = codec.decode(codec.encode(entry), type=AuditEntry)
        assert back.computed() == entry.hash == back.hash


def test_addresses_secrets_and_very_long_details_are_not_stored() -> None:
    noted = build_audit_action(
        1, "jwt:ada@example.org", "recipient.put", "ada", {"to": "bob@example.org", "list": ["+15550100200"]}
    )
    assert noted.who == "jwt:ada@example.org"
    assert "bob" not in str(noted.detail)
    assert "15550100200" not in str(noted.detail)
    assert build_audit_action(1, "x" * 9000, "a", "b", {"rows": ["word"] * 5000}).detail.keys() == {"tooLong"}


def test_the_trail_is_append_only() -> None:
    reject_audit_rewrite(AUDIT, 0)
    reject_audit_rewrite("device", -1)
    reject_audit_rewrite("device")
    for version in (None, 1, -1):
        with pytest.raises(StoreError, match="cannot be changed or deleted"):
            reject_audit_rewrite(AUDIT, version)
