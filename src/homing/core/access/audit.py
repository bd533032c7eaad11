"""The audit trail: who did what, in hash chains where each entry carries the hash of the previous one.

Changing, removing, inserting or moving an entry breaks the chain at that place. The newest hash is not
protected by a later one. Anyone who can write to the store can also replace a whole chain by a new one. Only
a comparison with an earlier hash that was kept elsewhere detects this.
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
from homing.core.plain_values import SURROGATE
from homing.core.ports.stores import Entry
from homing.core.redaction import redact
from homing.core.times import moment

AUDIT, AUDIT_HEAD = "audit", "audit_head"
"""Registry kinds: the audit entries of a tenant, and the head of each tenant's chain."""


GENESIS = "0" * 64
"""Value of `previous` in the first entry of a chain."""


_MAX_NUMBER = 10**12

_MAX_TEXT_CHARS = 500

_MAX_DETAIL_BYTES = 8_000

_encode = msgspec.json.Encoder(order="sorted").encode


class AuditAction(Struct, frozen=True, kw_only=True):
    """An action that is about to be performed and is not yet part of a chain.

    Its texts are cut to a maximum length.
    """

    at: int
    who: str
    action: str
    target: str
    detail: dict[str, Any]


class AuditEntry(Struct, frozen=True, kw_only=True, rename="camel"):
    """One audit entry as stored. `hash` covers all other fields."""

    tenant: str
    number: int
    """Position in the chain, without gaps. The first entry is 1."""
    at: int
    who: str
    action: str
    target: str
    detail: dict[str, Any]
    previous: str
    hash: str = ""

    def computed(self) -> str:
        """Returns the hash the entry should have: SHA-256 of its other fields as sorted, compact JSON."""
        plain = msgspec.to_builtins(self)
        del plain["hash"]
        return sha256(_encode(plain)).hexdigest()


class AuditEntryView(Struct, frozen=True, kw_only=True, rename="camel"):
    """One entry of the audit trail, as the API and commands return it."""

    number: int
    at: datetime
    who: str
    """Author of the action: `key:ID`, `jwt:SUBJECT`, `cli:NAME`, or `recipient` for an unsubscribe link."""
    action: str
    """The action that was about to be performed, such as `key.create`."""
    target: str
    detail: dict[str, Any]
    previous: str
    hash: str


class AuditPage(Struct, frozen=True, kw_only=True, rename="camel"):
    """A page of audit entries, newest first. `cursor` fetches the next page; it is None on the last page."""

    items: tuple[AuditEntryView, ...]
    cursor: str | None = None


class ChainHead(Struct, frozen=True):
    """Number and hash of the newest entry of a chain."""

    number: int = 0
    hash: str = GENESIS
    """Hash of the newest entry. Empty if the head is lost, so that the newest entry cannot be verified."""


class ChainFaultKind(StrEnum):
    """How a chain was tampered with."""

    CHANGED = "changed"
    REMOVED = "removed"
    INSERTED = "inserted"
    REORDERED = "reordered"


class ChainFault(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One place where a chain differs from what was written."""

    tenant: str
    """Tenant whose chain is affected, or `*` for the chain of actions that belong to no tenant."""
    kind: ChainFaultKind
    number: int
    """Number of the affected entry, or of the first one if several consecutive entries were removed."""
    until: int | None = None
    """Number of the last entry if several consecutive entries were removed. None otherwise."""
    what: str


def build_audit_action(at: int, who: str, action: str, target: str, detail: Mapping[str, Any]) -> AuditAction:
    """Builds an action with texts and detail of limited size, and redacts the detail."""
    return AuditAction(
        at=at, who=_plain(who), action=_plain(action), target=_plain(target), detail=_detail(detail)
    )


def audit_key(number: int) -> str:
    """Returns the registry key of an entry. The newest entry sorts first."""
    return f"{_MAX_NUMBER - number:012d}"


def append_to_chain(tenant: str, head: ChainHead, actions: Iterable[AuditAction]) -> tuple[AuditEntry, ...]:
    """Returns the next entries of a chain, one per action."""
    entries: list[AuditEntry] = []
    for action in actions:
        entry = AuditEntry(
            tenant=tenant,
            number=head.number + 1,
            at=action.at,
            who=action.who,
            action=action.action,
            target=action.target,
            detail=action.detail,
            previous=head.hash,
        )
        entry = replace(entry, hash=entry.computed())
        entries.append(entry)
        head = ChainHead(entry.number, entry.hash)
    return tuple(entries)


def view_audit_entry(entry: AuditEntry) -> AuditEntryView:
    """Converts a stored entry to the form that the API and commands return."""
    return AuditEntryView(
        number=entry.number,
        at=moment(entry.at),
        who=entry.who,
        action=entry.action,
        target=entry.target,
        detail=entry.detail,
        previous=entry.previous,
        hash=entry.hash,
    )


def decode_audit_entry(value: Mapping[str, Any]) -> AuditEntry | None:
    """Decodes a stored audit entry. Returns None if its content is invalid."""
    try:
        return msgspec.convert(value, AuditEntry)
    except msgspec.ValidationError:
        return None


class ChainVerifier:
    """Verifies a chain from its head down to its first entry, page by page.

    It runs backwards, because each entry contains the expected hash of the entry before it. So a changed
    entry is reported itself, and not the entry after it.
    """

    def __init__(self, tenant: str, head: ChainHead) -> None:
        self._tenant = tenant
        self._top = self._next = head.number
        self._expected: str | None = head.hash or None
        """Expected hash of the next entry to be verified. None if the entry that has it is not valid."""
        self.seen: dict[str, int] = {}
        """Hashes passed to `watch` that were found, with the number of their entry."""
        self._watched: frozenset[str] = frozenset()

    def watch(self, hashes: Iterable[str]) -> None:
        """Records in `seen` which of these hashes, kept outside the store, the chain contains."""
        self._watched = frozenset(hashes)

    def page(self, entries: Sequence[Entry]) -> list[ChainFault]:
        """Verifies the next page of entries, newest first, and returns the faults found."""
        return [fault for entry in entries for fault in self._verify_entry(entry)]

    def end(self) -> list[ChainFault]:
        """Verifies, after the last page, that the first entry was reached. Returns the faults found."""
        faults = self._missing_entries(0)
        if not faults and self._expected not in (None, GENESIS):
            faults.append(self._fault(ChainFaultKind.CHANGED, 1, "it is not the first entry of the chain"))
        return faults

    def _verify_entry(self, stored: Entry) -> list[ChainFault]:
        number = audit_number(stored.key)
        if number is None or not 1 <= number <= self._next:
            where = stored.key if number is None else number
            return [
                self._fault(ChainFaultKind.INSERTED, number or 0, f"{where} is beyond the head of the chain")
            ]
        faults = self._missing_entries(number)
        self._next = number - 1
        entry = decode_audit_entry(stored.value)
        fault = self._find_fault(entry, number)
        if fault is not None:
            faults.append(fault)
            self._expected = None
        else:
            assert entry is not None, "an unreadable entry is a fault"
            self._expected = entry.previous
            if entry.hash in self._watched:
                self.seen[entry.hash] = number
        return faults

    def _find_fault(self, entry: AuditEntry | None, number: int) -> ChainFault | None:
        if entry is None:
            return self._fault(ChainFaultKind.CHANGED, number, "it cannot be read as an audit entry")
        sound = entry.computed() == entry.hash
        if entry.number != number or entry.tenant != self._tenant:
            kind = ChainFaultKind.REORDERED if sound else ChainFaultKind.CHANGED
            problem = f"entry {entry.number} of {entry.tenant!r} is stored in its place"
            return self._fault(kind, number, problem)
        if not sound:
            return self._fault(ChainFaultKind.CHANGED, number, "its content does not match its hash")
        if self._expected is not None and entry.hash != self._expected:
            above = "the head" if number == self._top else f"entry {number + 1}"
            return self._fault(
                ChainFaultKind.CHANGED, number, f"its hash is not the one that {above} refers to"
            )
        return None

    def _missing_entries(self, number: int) -> list[ChainFault]:
        """Returns the fault if entries are missing between the last one verified and `number`."""
        if number >= self._next:
            return []
        first, last = number + 1, self._next
        self._expected = None
        count = last - first + 1
        problem = "it is missing" if count == 1 else f"{count} entries are missing"
        return [self._fault(ChainFaultKind.REMOVED, first, problem, until=last if count > 1 else None)]

    def _fault(self, kind: ChainFaultKind, number: int, what: str, until: int | None = None) -> ChainFault:
        return ChainFault(tenant=self._tenant, kind=kind, number=number, until=until, what=what)


def reject_audit_rewrite(kind: str, version: int | None = None) -> None:
    """Raises `StoreError` for a write that would change or delete an audit entry.

    A write with version 0 adds a new entry, which is permitted.
    """
    if kind == AUDIT and version != 0:
        raise StoreError("audit entries cannot be changed or deleted")


def audit_number(key: str) -> int | None:
    """Returns the number of an entry from its key, or None if the key has another form."""
    if not (key.isascii() and key.isdigit() and len(key) == 12):
        return None
    return _MAX_NUMBER - int(key)


def _plain(text: str) -> str:
    return SURROGATE.sub("?", text).replace("\x00", "?")[:_MAX_TEXT_CHARS]


def _detail(detail: Mapping[str, Any]) -> dict[str, Any]:
    plain = _redacted(msgspec.to_builtins(dict(detail), str_keys=True))
    encoded = _encode(plain)
    if len(encoded) > _MAX_DETAIL_BYTES:
        return {"tooLong": len(encoded)}
    found: dict[str, Any] = msgspec.json.decode(encoded)
    return found


def _redacted(value: Any) -> Any:
    if isinstance(value, str):
        return redact(_plain(value))
    if isinstance(value, Mapping):
        return {_plain(str(key)): _redacted(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_redacted(one) for one in value]
    if isinstance(value, int) and value.bit_length() > 63:
        return str(value)  # some stores cannot keep it as a number
    return value
