"""The audit trail in the store. Entries are appended, read and verified, but never changed or removed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from homing.core.access.audit import (
    AUDIT,
    AUDIT_HEAD,
    AuditAction,
    AuditEntry,
    AuditPage,
    ChainFault,
    ChainFaultKind,
    ChainHead,
    ChainVerifier,
    append_to_chain,
    audit_key,
    audit_number,
    build_audit_action,
    decode_audit_entry,
    view_audit_entry,
)
from homing.core.access.scopes import Caller
from homing.core.errors import StoreError
from homing.core.ports.runtime import Clock
from homing.core.ports.stores import Entry, Registry
from homing.engine.access.tenants import Tenants
from homing.engine.operations.cursors import foreign_cursor
from homing.engine.operations.policies import EVERY_TENANT

GLOBAL_SUBJECTS = frozenset(
    {"policy", "provider", "breaker", "tenant", "purge", "sink", "setting", "settings"}
)
"""Subjects of actions that belong to no tenant. These actions are recorded in a chain of their own, `*`."""


_PAGE = 500

_MAX_BATCH = 200

_MAX_TRIES = 100
"""Number of tries to append entries. A try fails if another process appends to the same chain first."""


class VerificationStep(Struct, frozen=True, kw_only=True, rename="camel"):
    """One step of the verification of a chain: the progress so far and the faults found in this step."""

    tenant: str
    """Tenant whose chain is verified, or `*` for actions that belong to no tenant."""
    entries: int
    """Number of entries verified so far."""
    head: ChainHead
    faults: tuple[ChainFault, ...] = ()
    done: bool = False
    """True in the last step, when the whole chain has been verified."""
    seen: tuple[str, ...] = ()
    """Hashes passed to `verify` that were found in this chain. Set in the last step."""


class _Note(Struct, frozen=True):
    """An action that waits to be written to a chain. `done` ends when the write ends."""

    chain: str
    deed: AuditAction
    done: asyncio.Future[None]


class AuditTrail:
    """Appends, lists and verifies audit entries.

    There is one chain per tenant, and the chain `*` for actions that belong to no tenant. Entries that arrive
    during a write are collected and written together afterwards.
    """

    def __init__(self, registry: Registry, tenants: Tenants, clock: Clock) -> None:
        self._registry = registry
        self._tenants = tenants
        self._clock = clock
        self._waiting: list[_Note] = []
        self._writing: asyncio.Task[None] | None = None

    # Writing -------------------------------------------------------------------------------------

    async def note(self, caller: Caller, action: str, target: str, detail: Mapping[str, Any]) -> None:
        """Records an action before it is carried out. If this raises, the action must not be carried out."""
        subject = action.partition(".")[0]
        note = _Note(
            chain=EVERY_TENANT if subject in GLOBAL_SUBJECTS else caller.tenant,
            deed=build_audit_action(self._clock.now_ms(), caller.who, action, target, detail),
            done=asyncio.get_running_loop().create_future(),
        )
        self._waiting.append(note)
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all(), name="homing-audit")
        await note.done

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                notes, self._waiting = self._waiting[:_MAX_BATCH], self._waiting[_MAX_BATCH:]
                await self._write_batch([note for note in notes if not note.done.done()])
        finally:
            self._writing = None

    async def _write_batch(self, notes: Sequence[_Note]) -> None:
        try:
            await self._write(notes)
        except Exception as error:
            for note in notes:
                if not note.done.done():
                    note.done.set_exception(error)
        else:
            for note in notes:
                if not note.done.done():
                    note.done.set_result(None)

    async def _write(self, notes: Sequence[_Note]) -> None:
        chains: dict[str, list[AuditAction]] = {}
        for note in notes:
            chains.setdefault(note.chain, []).append(note.deed)
        for _ in range(_MAX_TRIES):
            heads = await self._registry.get_many(EVERY_TENANT, AUDIT_HEAD, list(chains))
            entries = [
                entry
                for chain, deeds in chains.items()
                for entry in _next_entries(chain, heads.get(chain), deeds)
            ]
            if await self._registry.put(entries, who="homing") is not None:
                return
        raise StoreError(
            "the audit trail cannot be written, so nothing was done; try again, or run `homing audit verify`"
        )

    # Reading -------------------------------------------------------------------------------------

    async def list(self, tenant: str, *, cursor: str | None = None, limit: int = 50) -> AuditPage:
        """Returns a page of a tenant's chain, newest first.

        If `tenant` is `*`, returns actions that belong to no tenant.
        """
        if cursor is not None and audit_number(cursor) is None:
            raise foreign_cursor()
        page = await self._registry.list_entries(tenant, AUDIT, after=cursor or "", limit=limit + 1)
        shown = page[:limit]
        entries = (decode_audit_entry(entry.value) for entry in shown)
        return AuditPage(
            items=tuple(view_audit_entry(entry) for entry in entries if entry is not None),
            cursor=shown[-1].key if len(page) > limit else None,
        )

    async def chains(self) -> tuple[str, ...]:
        """Returns the names of all chains, including those whose head was removed: tenants, and `*`."""
        found: dict[str, None] = {}
        after = ""
        while True:
            page = await self._registry.list_entries(EVERY_TENANT, AUDIT_HEAD, after=after, limit=_PAGE)
            found |= dict.fromkeys(entry.key for entry in page)
            if len(page) < _PAGE:
                break
            after = page[-1].key
        after = ""
        while True:
            names = [one.name for one in await self._tenants.list(after=after, limit=_PAGE)]
            for name in names:
                if name not in found and await self._registry.list_entries(name, AUDIT, limit=1):
                    found[name] = None
            if len(names) < _PAGE:
                break
            after = names[-1]
        if await self._registry.list_entries(EVERY_TENANT, AUDIT, limit=1):
            found[EVERY_TENANT] = None
        return tuple(sorted(found))

    async def verify(self, tenant: str, heads: Iterable[str] = ()) -> AsyncIterator[VerificationStep]:
        """Verifies one chain and yields each step. `heads` are known hashes to search for in the chain."""
        newest = await self._registry.list_entries(tenant, AUDIT, limit=1)
        # Read the head last: it is written together with its entry, so it is never older than the entry.
        stored = (await self._registry.get_many(EVERY_TENANT, AUDIT_HEAD, [tenant])).get(tenant)
        head, lost = _head_to_walk(tenant, stored, newest)
        walk = ChainVerifier(tenant, head)
        walk.watch(heads)
        entries = 0
        after = "" if _has_newer(newest, head) else audit_key(head.number + 1)
        if lost is not None:
            yield VerificationStep(tenant=tenant, entries=0, head=head, faults=(lost,))
        while True:
            page = await self._registry.list_entries(tenant, AUDIT, after=after, limit=_PAGE)
            entries += len(page)
            faults = walk.page(page)
            if len(page) < _PAGE:
                yield VerificationStep(
                    tenant=tenant,
                    entries=entries,
                    head=head,
                    faults=(*faults, *walk.end()),
                    done=True,
                    seen=tuple(walk.seen),
                )
                return
            yield VerificationStep(tenant=tenant, entries=entries, head=head, faults=tuple(faults))
            after = page[-1].key


def _next_entries(chain: str, stored: Entry | None, deeds: Sequence[AuditAction]) -> list[Entry]:
    """Returns the new entries of a chain, and its new head, which replaces the stored head."""
    new = append_to_chain(chain, _decode_head(stored), deeds)
    head = Entry(
        tenant=EVERY_TENANT,
        kind=AUDIT_HEAD,
        key=chain,
        value=msgspec.to_builtins(ChainHead(new[-1].number, new[-1].hash)),
        version=stored.version if stored else 0,
    )
    return [*(_registry_entry(entry) for entry in new), head]


def _registry_entry(entry: AuditEntry) -> Entry:
    value: dict[str, Any] = msgspec.to_builtins(entry)
    return Entry(tenant=entry.tenant, kind=AUDIT, key=audit_key(entry.number), value=value)


def _decode_head(stored: Entry | None) -> ChainHead:
    if stored is None:
        return ChainHead()
    try:
        return msgspec.convert(stored.value, ChainHead)
    except msgspec.ValidationError:
        raise StoreError("the head of the audit trail was changed; run `homing audit verify`") from None


def _head_to_walk(
    tenant: str, stored: Entry | None, newest: Sequence[Entry]
) -> tuple[ChainHead, ChainFault | None]:
    """Returns the head from which the verification starts, and the fault of the stored head, if any.

    If the stored head is missing or unreadable, the verification starts at the newest entry.
    """
    try:
        head = _decode_head(stored)
        if stored is not None or not newest:
            return head, None
        kind, what = ChainFaultKind.REMOVED, "the head of the chain is missing"
    except StoreError:
        kind, what = ChainFaultKind.CHANGED, "the head of the chain cannot be read"
    number = (audit_number(newest[0].key) or 0) if newest else 0
    return ChainHead(number, ""), ChainFault(tenant=tenant, kind=kind, number=number, what=what)


def _has_newer(newest: Sequence[Entry], head: ChainHead) -> bool:
    """Returns True if the chain has an entry that is newer than its head."""
    return bool(newest) and newest[0].key < audit_key(head.number)
