"""The audit trail: who did what, in chains where each entry carries the hash of the one before.

Whoever changes, removes, adds or moves an entry breaks the chain at that place. Only the newest hash is held
by nothing: whoever can write to the store can also write a new, shorter chain, and only somebody who kept an
earlier hash elsewhere can tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from homing.core.errors import StoreError
from homing.core.events import moment
from homing.core.model import Entry
from homing.core.redact import redact
from homing.core.text import SURROGATE

AUDIT, AUDIT_HEAD = "audit", "audit_head"
"""Kinds of entries: what was done, by tenant; and how far each chain goes, by the tenant's name."""

GENESIS = "0" * 64
"""What comes before the first entry."""

_NUMBERS = 10**12
_MOST_TEXT = 500
_MOST_DETAIL_BYTES = 8_000
_encode = msgspec.json.Encoder(order="sorted").encode


class Deed(Struct, frozen=True, kw_only=True):
    """What is about to be done, before it has its place in a chain. `deed` makes one."""

    at: int
    who: str
    action: str
    target: str
    detail: dict[str, Any]


class AuditEntry(Struct, frozen=True, kw_only=True, rename="camel"):
    """One entry as it is stored. `hash` is over all other fields."""

    tenant: str
    number: int
    """1 is the first; none is left out."""
    at: int
    who: str
    action: str
    target: str
    detail: dict[str, Any]
    previous: str
    hash: str = ""

    def computed(self) -> str:
        """The hash that it should have: SHA-256 of its other fields as JSON, names sorted, without blanks."""
        plain = msgspec.to_builtins(self)
        del plain["hash"]
        return sha256(_encode(plain)).hexdigest()


class Audited(Struct, frozen=True, kw_only=True, rename="camel"):
    """One entry of the trail, as people and programs read it."""

    number: int
    at: datetime
    who: str
    """`key:ID`, `jwt:SUBJECT`, `cli:NAME`, or `recipient`: by a link in a message."""
    action: str
    """`subject.verb`: what was about to be done."""
    target: str
    detail: dict[str, Any]
    previous: str
    hash: str


class Head(Struct, frozen=True):
    """How far a chain goes."""

    number: int = 0
    hash: str = GENESIS
    """Empty where the head is lost: then nothing says what the newest entry must be."""


class FaultKind(StrEnum):
    """What was done to a chain."""

    CHANGED = "changed"
    REMOVED = "removed"
    INSERTED = "inserted"
    REORDERED = "reordered"


class Fault(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One thing that is not as it was written."""

    tenant: str
    """Whose chain it is in."""
    kind: FaultKind
    number: int
    """The entry; of several that were removed in a row, the first."""
    until: int | None = None
    """The last of several that were removed in a row."""
    what: str


def deed(at: int, who: str, action: str, target: str, detail: Mapping[str, Any]) -> Deed:
    """A deed that reads back as it is written: plain JSON, not too long, no addresses in the detail."""
    return Deed(at=at, who=_plain(who), action=_plain(action), target=_plain(target), detail=_detail(detail))


def key_of(number: int) -> str:
    """An entry's key: the newest sorts first."""
    return f"{_NUMBERS - number:012d}"


def written(tenant: str, head: Head, deeds: Iterable[Deed]) -> tuple[AuditEntry, ...]:
    """The entries that come next in a chain."""
    entries: list[AuditEntry] = []
    for deed in deeds:
        entry = AuditEntry(
            tenant=tenant,
            number=head.number + 1,
            at=deed.at,
            who=deed.who,
            action=deed.action,
            target=deed.target,
            detail=deed.detail,
            previous=head.hash,
        )
        entry = replace(entry, hash=entry.computed())
        entries.append(entry)
        head = Head(entry.number, entry.hash)
    return tuple(entries)


def audited(entry: AuditEntry) -> Audited:
    """An entry as it is read."""
    return Audited(
        number=entry.number,
        at=moment(entry.at),
        who=entry.who,
        action=entry.action,
        target=entry.target,
        detail=entry.detail,
        previous=entry.previous,
        hash=entry.hash,
    )


def entry_from(value: Mapping[str, Any]) -> AuditEntry | None:
    """An entry from what is stored; None where it is none any more."""
    try:
        return msgspec.convert(value, AuditEntry)
    except msgspec.ValidationError:
        return None


class Walk:
    """Checks a chain from its head down to its first entry, page by page.

    It goes backwards because the newer entry says what the older one must be: so the one that was changed is
    blamed, and not the one after it.
    """

    def __init__(self, tenant: str, head: Head) -> None:
        self._tenant = tenant
        self._top = self._next = head.number
        self._expected: str | None = head.hash or None
        """What the next entry must hash to; None where the one above it could not be trusted."""
        self.seen: dict[str, int] = {}
        """Hashes that were asked for by `watch`, and where they are."""
        self._watched: frozenset[str] = frozenset()

    def watch(self, hashes: Iterable[str]) -> None:
        """Look out for these hashes: somebody has kept them elsewhere."""
        self._watched = frozenset(hashes)

    def page(self, entries: Sequence[Entry]) -> list[Fault]:
        """The next entries, newest first, as the store lists them."""
        return [fault for entry in entries for fault in self._one(entry)]

    def end(self) -> list[Fault]:
        """After the last page: the beginning must have been reached."""
        faults = self._gap(0)
        if not faults and self._expected not in (None, GENESIS):
            faults.append(self._fault(FaultKind.CHANGED, 1, "it does not begin the chain"))
        return faults

    def _one(self, stored: Entry) -> list[Fault]:
        number = number_of(stored.key)
        if number is None or not 1 <= number <= self._next:
            where = stored.key if number is None else number
            return [self._fault(FaultKind.INSERTED, number or 0, f"{where} is beyond the head of the chain")]
        faults = self._gap(number)
        self._next = number - 1
        entry = entry_from(stored.value)
        fault = self._judged(entry, number)
        if fault is not None:
            faults.append(fault)
            self._expected = None
        else:
            assert entry is not None, "what cannot be read is a fault"
            self._expected = entry.previous
            if entry.hash in self._watched:
                self.seen[entry.hash] = number
        return faults

    def _judged(self, entry: AuditEntry | None, number: int) -> Fault | None:
        if entry is None:
            return self._fault(FaultKind.CHANGED, number, "it is no entry of a trail any more")
        sound = entry.computed() == entry.hash
        if entry.number != number or entry.tenant != self._tenant:
            kind = FaultKind.REORDERED if sound else FaultKind.CHANGED
            told = f"entry {entry.number} of {entry.tenant!r} lies in its place"
            return self._fault(kind, number, told)
        if not sound:
            return self._fault(FaultKind.CHANGED, number, "its content does not have its hash")
        if self._expected is not None and entry.hash != self._expected:
            above = "the head" if number == self._top else f"entry {number + 1}"
            return self._fault(FaultKind.CHANGED, number, f"it is not the one that {above} follows")
        return None

    def _gap(self, number: int) -> list[Fault]:
        """Entries that should be between the last one seen and this one."""
        if number >= self._next:
            return []
        first, last = number + 1, self._next
        self._expected = None
        count = last - first + 1
        told = "it is missing" if count == 1 else f"{count} entries are missing"
        return [self._fault(FaultKind.REMOVED, first, told, until=last if count > 1 else None)]

    def _fault(self, kind: FaultKind, number: int, what: str, until: int | None = None) -> Fault:
        return Fault(tenant=self._tenant, kind=kind, number=number, until=until, what=what)


def refuse_rewrite(kind: str, version: int | None = None) -> None:
    """What is in the trail stays: no store writes over an entry (`version` 0 is a new one) or deletes it."""
    if kind == AUDIT and version != 0:
        raise StoreError("entries of the audit trail are written once; none can be changed or deleted")


def number_of(key: str) -> int | None:
    """The entry's number from its key; None for one that no entry has."""
    if not (key.isascii() and key.isdigit() and len(key) == 12):
        return None
    return _NUMBERS - int(key)


def _plain(text: str) -> str:
    return SURROGATE.sub("?", text).replace("\x00", "?")[:_MOST_TEXT]


def _detail(detail: Mapping[str, Any]) -> dict[str, Any]:
    plain = _quiet(msgspec.to_builtins(dict(detail), str_keys=True))
    encoded = _encode(plain)
    if len(encoded) > _MOST_DETAIL_BYTES:
        return {"tooLong": len(encoded)}
    found: dict[str, Any] = msgspec.json.decode(encoded)
    return found


def _quiet(value: Any) -> Any:
    if isinstance(value, str):
        return redact(_plain(value))
    if isinstance(value, Mapping):
        return {_plain(str(key)): _quiet(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_quiet(one) for one in value]
    if isinstance(value, int) and value.bit_length() > 63:
        return str(value)  # not every store can keep it as a number
    return value
