"""Registry entries and shared worker state of the memory store."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from msgspec import Struct, msgpack
from msgspec.structs import replace

from homing.core.access.audit import reject_audit_rewrite
from homing.core.lifecycle.outcomes import RegistryPut
from homing.core.ports.runtime import Clock
from homing.core.ports.stores import Entry, TokenGrant, TokenRequest
from homing.core.routing import rate_limits
from homing.core.routing.breaker import Breaker
from homing.core.routing.rate_limits import RECIPIENT_BUCKETS, RateLimit, TokenBucket


class _Filed(Struct, frozen=True):
    """A stored entry. The value is encoded, so that no reader can change it."""

    value: bytes
    version: int
    updated_at: int
    updated_by: str


class _Drawer(Struct):
    """One tenant's entries of one kind. `keys` is sorted."""

    filed: dict[str, _Filed]
    keys: list[str]


class MemoryRegistry:
    """Implements `Registry` and `SharedState` with dicts."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._drawers: dict[tuple[str, str], _Drawer] = {}
        self._breakers: dict[str, Breaker] = {}
        self._buckets: dict[str, TokenBucket] = {}
        self._leaders: dict[str, tuple[str, int]] = {}

    # Registry ------------------------------------------------------------------------------------

    async def get_many(self, tenant: str, kind: str, keys: Collection[str]) -> dict[str, Entry]:
        drawer = self._drawers.get((tenant, kind))
        if drawer is None:
            return {}
        return {key: _entry(tenant, kind, key, filed) for key in keys if (filed := drawer.filed.get(key))}

    async def list_entries(
        self, tenant: str, kind: str, *, prefix: str = "", after: str = "", limit: int = 100
    ) -> tuple[Entry, ...]:
        drawer = self._drawers.get((tenant, kind))
        if drawer is None:
            return ()
        start = bisect_left(drawer.keys, prefix)
        if after:
            start = max(start, bisect_right(drawer.keys, after))
        found: list[Entry] = []
        for key in drawer.keys[start : start + max(0, limit)]:
            if not key.startswith(prefix):
                break
            found.append(_entry(tenant, kind, key, drawer.filed[key]))
        return tuple(found)

    async def put(self, entries: Sequence[Entry], *, who: str) -> tuple[Entry, ...] | None:
        encoded = [msgpack.encode(entry.value) for entry in entries]
        versions: dict[tuple[str, str, str], int] = {}
        for entry in entries:
            reject_audit_rewrite(entry.kind, entry.version)
            place = (entry.tenant, entry.kind, entry.key)
            version = versions.get(place, self._version(*place))
            if entry.version not in (version, -1):
                return None
            versions[place] = version + 1
        return tuple(
            self._file(entry.tenant, entry.kind, entry.key, value, who)
            for entry, value in zip(entries, encoded, strict=True)
        )

    async def delete(self, tenant: str, kind: str, keys: Sequence[str]) -> int:
        reject_audit_rewrite(kind)
        drawer = self._drawers.get((tenant, kind))
        if drawer is None:
            return 0
        number = 0
        for key in keys:
            if drawer.filed.pop(key, None) is not None:
                del drawer.keys[bisect_left(drawer.keys, key)]
                number += 1
        return number

    def _write(self, puts: Iterable[RegistryPut]) -> None:
        """Merges the registry entries of settlements or receipts into the stored ones. New fields win."""
        for put in puts:
            drawer = self._drawers.get((put.tenant, put.kind))
            filed = drawer.filed.get(put.key) if drawer else None
            before = msgpack.decode(filed.value, type=dict[str, Any]) if filed else {}
            self._file(put.tenant, put.kind, put.key, msgpack.encode({**before, **put.value}), "homing")

    def _version(self, tenant: str, kind: str, key: str) -> int:
        drawer = self._drawers.get((tenant, kind))
        filed = drawer.filed.get(key) if drawer else None
        return filed.version if filed else 0

    def _file(self, tenant: str, kind: str, key: str, value: bytes, who: str) -> Entry:
        drawer = self._drawers.get((tenant, kind))
        if drawer is None:
            drawer = self._drawers[tenant, kind] = _Drawer({}, [])
        if key not in drawer.filed:
            insort(drawer.keys, key)
        version = self._version(tenant, kind, key) + 1
        filed = _Filed(value, version, self._clock.now_ms(), who)
        drawer.filed[key] = filed
        return _entry(tenant, kind, key, filed)

    # State shared by workers ---------------------------------------------------------------------

    async def breakers(self) -> dict[str, Breaker]:
        return dict(self._breakers)

    async def put_breaker(self, provider: str, breaker: Breaker) -> bool:
        stored = self._breakers.get(provider)
        if breaker.version != (stored.version if stored else 0):
            return False
        self._breakers[provider] = replace(breaker, version=breaker.version + 1)
        return True

    async def take(self, key: str, limit: RateLimit, want: int) -> TokenGrant:
        return (await self.take_many({key: TokenRequest(limit, want)}))[key]

    async def take_many(self, wants: Mapping[str, TokenRequest]) -> dict[str, TokenGrant]:
        now = self._clock.now_ms()
        taken: dict[str, TokenGrant] = {}
        for key, want in wants.items():
            bucket = self._buckets.get(key) or rate_limits.full_bucket(want.limit, now)
            self._buckets[key], granted, wait_ms = rate_limits.take_from_bucket(
                bucket, want.limit, now, want.tokens
            )
            taken[key] = TokenGrant(granted, wait_ms)
        return taken

    def _forget_full(self, until: int, limit: int) -> None:
        """Removes recipients' rate limit buckets that have been full for a long time."""
        first, end = RECIPIENT_BUCKETS
        full = (key for key, bucket in self._buckets.items() if first <= key < end and bucket.at < until)
        for key in list(islice(full, limit)):
            del self._buckets[key]

    async def lead(self, task: str, worker: str, for_ms: int) -> bool:
        now = self._clock.now_ms()
        leader, until = self._leaders.get(task, (worker, now))
        if leader != worker and until > now:
            return False
        self._leaders[task] = (worker, now + for_ms)
        return True


def check_puts(puts: Iterable[RegistryPut]) -> None:
    """Raises an error if one of the entries cannot be encoded. Called before anything is changed."""
    for put in puts:
        msgpack.encode(put.value)


def _entry(tenant: str, kind: str, key: str, filed: _Filed) -> Entry:
    return Entry(
        tenant=tenant,
        kind=kind,
        key=key,
        value=_decode(filed.value),
        version=filed.version,
        updated_at=filed.updated_at,
        updated_by=filed.updated_by,
    )


_decode = msgpack.Decoder(dict[str, Any]).decode
