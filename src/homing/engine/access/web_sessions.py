"""The sessions of people who signed in to the dashboard, and links that sign in once.

Both are in the store, so every process of the service knows them. The store has digests only: neither a
session nor a link can be used by someone who reads the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from homing.core.access.scopes import Caller, Scope
from homing.core.ports.runtime import Clock, RandomSource
from homing.core.ports.stores import Entry, Registry
from homing.engine.access.api_keys import ApiKeyManager
from homing.engine.access.tenants import Tenants
from homing.engine.operations.policies import EVERY_TENANT

SESSION, LINK = "web_session", "web_link"
"""Registry kinds: sessions, and links that sign in once. Their keys are digests."""

LINK_MS = 3_600_000
"""Time for which a link that signs in once can be used."""

KEY_AUTHOR = "key:"

_SECRET_BITS = 256

_SEEN_INTERVAL_MS = 60_000
"""Minimum time between two writes of the time at which a session was last used."""

_MAX_TOKEN_CHARS = 100

_PAGE = 500


class SessionRecord(Struct, frozen=True, kw_only=True, rename="camel"):
    """A session as stored."""

    tenant: str
    who: str
    """Identity in the audit trail: `key:ID`, `jwt:SUBJECT`, or `link:PROCESS` for a link that signs in."""
    scopes: tuple[Scope, ...]
    created_at: int
    seen_at: int
    ends_at: int
    """Time at which the session ends, however much it is used."""


class WebSession(Struct, frozen=True, kw_only=True):
    """A valid session, for one request."""

    caller: Caller
    record: SessionRecord
    form_token: str
    """Token that every form of the session must contain."""


class WebSessions:
    """Creates, checks and ends sessions.

    A session that began with a key ends when the key expires or is revoked, and has the key's scopes.
    """

    def __init__(
        self,
        registry: Registry,
        keys: ApiKeyManager,
        tenants: Tenants,
        clock: Clock,
        random_source: RandomSource,
    ) -> None:
        self._registry = registry
        self._keys = keys
        self._tenants = tenants
        self._clock = clock
        self._random_source = random_source

    async def start(self, caller: Caller, *, lasts_ms: int) -> str:
        """Creates a session for an authenticated caller, and returns its token for the cookie."""
        now, token = self._clock.now_ms(), self._new_token()
        record = SessionRecord(
            tenant=caller.tenant,
            who=caller.who,
            scopes=tuple(scope for scope in Scope if scope in caller.scopes),
            created_at=now,
            seen_at=now,
            ends_at=now + lasts_ms,
        )
        await self._delete_ended(SESSION, now)
        await self._registry.put([_entry(SESSION, token, record)], who=caller.who)
        return token

    async def find(self, token: str, *, idle_ms: int, used: bool = True) -> WebSession | None:
        """Returns the session of a token, or None if it is unknown, has ended or was idle for too long.

        `used` is False for a check that no person caused, such as that of an open stream.
        """
        entry = await self._read(SESSION, token)
        if entry is None:
            return None
        record, now = msgspec.convert(entry.value, SessionRecord), self._clock.now_ms()
        if now >= record.ends_at or now - record.seen_at >= idle_ms:
            await self.end(token)
            return None
        caller = await self._caller(record)
        if caller is None:
            return None
        if used and now - record.seen_at >= min(_SEEN_INTERVAL_MS, idle_ms // 2):
            record = replace(record, seen_at=now)
            value: dict[str, Any] = msgspec.to_builtins(record)
            # Another process may have ended the session meanwhile: then this write changes nothing.
            await self._registry.put([replace(entry, value=value)], who=record.who)
        return WebSession(caller=caller, record=record, form_token=form_token(token))

    async def end(self, token: str) -> None:
        """Ends a session. Has no effect if there is none."""
        await self._registry.delete(EVERY_TENANT, SESSION, [_digest(token)])

    async def create_link(self, tenant: str, who: str) -> str:
        """Creates a link that signs in once as an administrator of this tenant, and returns its token."""
        now, token = self._clock.now_ms(), self._new_token()
        await self._delete_ended(LINK, now)
        record = SessionRecord(
            tenant=tenant, who=who, scopes=(Scope.ADMIN,), created_at=now, seen_at=now, ends_at=now + LINK_MS
        )
        await self._registry.put([_entry(LINK, token, record)], who=who)
        return token

    async def use_link(self, token: str) -> Caller | None:
        """Returns the caller of a link, which cannot be used again, or None if it is not valid."""
        entry = await self._read(LINK, token)
        if entry is None or not await self._registry.delete(EVERY_TENANT, LINK, [entry.key]):
            return None  # unknown, or another request has used it at the same time
        record = msgspec.convert(entry.value, SessionRecord)
        return await self._caller(record) if self._clock.now_ms() < record.ends_at else None

    async def _caller(self, record: SessionRecord) -> Caller | None:
        if record.who.startswith(KEY_AUTHOR):
            return await self._keys.find_caller(record.who.removeprefix(KEY_AUTHOR))
        if not await self._tenants.enabled(record.tenant):
            return None
        return Caller(
            tenant=record.tenant, who=record.who, scopes=frozenset(record.scopes), rate_key=record.who
        )

    async def _read(self, kind: str, token: str) -> Entry | None:
        if not token or len(token) > _MAX_TOKEN_CHARS or not token.isascii():
            return None
        key = _digest(token)
        found: Mapping[str, Entry] = await self._registry.get_many(EVERY_TENANT, kind, [key])
        return found.get(key)

    async def _delete_ended(self, kind: str, now: int) -> None:
        """Deletes entries that have ended, so that they do not accumulate. Looks at one page at a time."""
        page = await self._registry.list_entries(EVERY_TENANT, kind, limit=_PAGE)
        ended = [entry.key for entry in page if entry.value["endsAt"] <= now]
        if ended:
            await self._registry.delete(EVERY_TENANT, kind, ended)

    def _new_token(self) -> str:
        return f"{self._random_source.getrandbits(_SECRET_BITS):064x}"


def form_token(token: str) -> str:
    """Returns the token for the forms of a session. It follows from the cookie, which no other site knows."""
    return sha256(f"form:{token}".encode()).hexdigest()


def _digest(token: str) -> str:
    return sha256(token.encode()).hexdigest()


def _entry(kind: str, token: str, record: SessionRecord) -> Entry:
    return Entry(tenant=EVERY_TENANT, kind=kind, key=_digest(token), value=msgspec.to_builtins(record))
