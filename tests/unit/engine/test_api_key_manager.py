"""The life of API keys: created, used, rotated, expired; and few reads of the store."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Collection, Sequence
from datetime import UTC, datetime

import msgspec
import pytest

from homing.core.access.api_keys import KeyStatus, NewKey, create_api_key
from homing.core.access.scopes import Scope
from homing.core.errors import CommandRefused, InvalidRequest, NotFound, StoreUnavailable, VersionConflict
from homing.core.ports.stores import Entry
from homing.engine.access.api_keys import ApiKeyManager
from homing.engine.access.tenants import Tenants
from homing.stores.sqlite import SqliteStore
from homing.testing.manual_clock import START_MS, ManualClock

HOUR_MS, DAY_MS = 3_600_000, 86_400_000


class CountedStore(SqliteStore):
    """Counts its calls, and yields once per call like a store with a disk."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(":memory:", clock=clock.now_ms)
        self.asked: Counter[str] = Counter()
        self.away = False

    async def get_many(self, tenant: str, kind: str, keys: Collection[str]) -> dict[str, Entry]:
        await self._meet(f"get {kind}")
        return await super().get_many(tenant, kind, keys)

    async def put(self, entries: Sequence[Entry], *, who: str) -> tuple[Entry, ...] | None:
        await self._meet(f"put {entries[0].kind}")
        return await super().put(entries, who=who)

    async def _meet(self, what: str) -> None:
        self.asked[what] += 1
        await asyncio.sleep(0)
        if self.away:
            raise StoreUnavailable


class KeychainProcess:
    """A process: its keychain and tenants on a store that others may share."""

    def __init__(self, clock: ManualClock, store: CountedStore, seed: int = 1) -> None:
        self.clock, self.store = clock, store
        self.tenants = Tenants(store, clock)
        self.keys = ApiKeyManager(store, self.tenants, clock, random.Random(seed))

    async def make(self, tenant: str = "default", *scopes: str, expires_in_ms: int | None = None) -> NewKey:
        at = None
        if expires_in_ms is not None:
            at = datetime.fromtimestamp((self.clock.now_ms() + expires_in_ms) / 1000, UTC)
        return await self.keys.create(tenant, "shop", scopes or ("send",), who="ada", expires_at=at)

    async def lets_in(self, new: NewKey) -> bool:
        return await self.keys.verify(new.text) is not None


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def office(clock: ManualClock) -> KeychainProcess:
    return KeychainProcess(clock, CountedStore(clock))


def elsewhere(office: KeychainProcess) -> KeychainProcess:
    """Returns another process on the same store."""
    return KeychainProcess(office.clock, office.store, seed=2)


async def test_a_key_belongs_to_its_tenant_with_its_scopes_and_only_a_hash_is_stored(
    office: KeychainProcess,
) -> None:
    new = await office.keys.create("default", "shop", ["read", "send"], who="cli:ada", rate_per_second=5)
    caller = await office.keys.verify(new.text)
    assert caller is not None
    assert (caller.tenant, caller.who, caller.rate_per_second) == ("default", f"key:{new.key.id}", 5)
    assert caller.scopes == {Scope.SEND, Scope.READ}
    assert not caller.may(Scope.ADMIN)
    secret = new.text.rpartition("_")[2]
    kept = await office.store.list_entries("*", "api_key")
    assert secret not in str(kept)
    assert secret not in repr(new)
    found = await office.keys.get(new.key.id)
    assert secret not in str(msgspec.to_builtins(found))
    assert (found.name, found.created_by, found.status) == ("shop", "cli:ada", KeyStatus.ACTIVE)
    assert found.created_at == datetime.fromtimestamp(START_MS / 1000, UTC)


async def test_a_wrong_secret_for_a_known_id_is_refused_without_a_read(office: KeychainProcess) -> None:
    new = await office.make()
    assert await office.lets_in(new)
    office.store.asked.clear()
    for secret in range(50):
        forged = create_api_key(0, secret).text.replace(create_api_key(0, 0).id, new.key.id)
        assert await office.keys.verify(forged) is None
    assert not office.store.asked


async def test_a_frequently_used_key_is_read_once_in_five_seconds(office: KeychainProcess) -> None:
    new = await office.make()
    for _ in range(100):
        assert await office.lets_in(new)
    assert office.store.asked["get api_key"] == 1
    office.clock.advance(5_000)
    assert await office.lets_in(new)
    assert office.store.asked["get api_key"] == 2


async def test_a_thousand_simultaneous_guesses_cause_few_reads(office: KeychainProcess) -> None:
    new = await office.make()
    guesses = [create_api_key(1000 + n, n).text for n in range(1000)]
    office.store.asked.clear()
    *answers, mine = await asyncio.gather(*map(office.keys.verify, [*guesses, new.text]))
    assert answers == [None] * 1000
    assert mine is not None
    assert office.store.asked["get api_key"] <= 3
    await asyncio.gather(*map(office.keys.verify, guesses))
    assert office.store.asked["get api_key"] <= 3, "that there is no such key is remembered too"


async def test_guesses_use_limited_memory_and_evict_no_key(office: KeychainProcess) -> None:
    new = await office.make()
    assert await office.lets_in(new)
    await asyncio.gather(*(office.keys.verify(create_api_key(1000 + n, n).text) for n in range(12_000)))
    office.store.asked.clear()
    assert await office.lets_in(new)
    assert not office.store.asked


async def test_a_revoked_key_is_refused_at_once_here_and_within_five_seconds_elsewhere(
    office: KeychainProcess,
) -> None:
    other = elsewhere(office)
    new = await office.make()
    assert await office.lets_in(new)
    assert await other.lets_in(new)
    revoked = await office.keys.revoke(new.key.id, who="cli:ada")
    assert (revoked.status, revoked.revoked_by) == (KeyStatus.REVOKED, "cli:ada")
    assert not await office.lets_in(new)
    assert await other.lets_in(new)
    office.clock.advance(5_000)
    assert not await other.lets_in(new)
    again = await office.keys.revoke(new.key.id, who="bob")
    assert (again.revoked_by, again.revoked_at) == ("cli:ada", revoked.revoked_at)


async def test_a_read_in_progress_while_a_key_is_revoked_is_not_cached(office: KeychainProcess) -> None:
    new = await office.make()
    early = asyncio.create_task(office.lets_in(new))
    await asyncio.sleep(0)
    await office.keys.revoke(new.key.id, who="ada")
    await early
    assert not await office.lets_in(new)


async def test_a_key_expires_by_itself(office: KeychainProcess) -> None:
    new = await office.make(expires_in_ms=2_000)
    office.clock.advance(1_999)
    assert await office.lets_in(new)
    office.clock.advance(1)
    assert not await office.lets_in(new)
    assert (await office.keys.get(new.key.id)).status is KeyStatus.EXPIRED


async def test_after_a_rotation_both_keys_are_valid_until_the_overlap_ends(office: KeychainProcess) -> None:
    old = await office.keys.create("default", "shop", ["send"], who="ada", rate_per_second=7)
    new = await office.keys.rotate(old.key.id, who="bob")
    assert new.text != old.text
    assert (new.key.name, new.key.scopes, new.key.rate_per_second) == ("shop", (Scope.SEND,), 7.0)
    found = await office.keys.get(old.key.id)
    assert found.replaced_by == new.key.id
    office.clock.advance(DAY_MS - 1)
    assert await office.lets_in(old)
    assert await office.lets_in(new)
    office.clock.advance(1)
    assert not await office.lets_in(old)
    assert await office.lets_in(new)


async def test_an_overlap_never_extends_a_key_and_may_be_zero(office: KeychainProcess) -> None:
    old = await office.make(expires_in_ms=HOUR_MS)
    new = await office.keys.rotate(old.key.id, who="ada")
    assert (await office.keys.get(old.key.id)).expires_at == old.key.expires_at
    assert new.key.expires_at == old.key.expires_at, "it lives as long as the old one was made to"
    newest = await office.keys.rotate(new.key.id, who="ada", overlap_ms=0)
    assert not await office.lets_in(new)
    assert await office.lets_in(newest)


async def test_an_expired_or_rotated_key_cannot_be_rotated(office: KeychainProcess) -> None:
    old = await office.make()
    new = await office.keys.rotate(old.key.id, who="ada")
    with pytest.raises(CommandRefused, match=f"rotated to {new.key.id}"):
        await office.keys.rotate(old.key.id, who="ada")
    await office.keys.revoke(new.key.id, who="ada")
    with pytest.raises(CommandRefused, match="is revoked"):
        await office.keys.rotate(new.key.id, who="ada")
    with pytest.raises(NotFound):
        await office.keys.rotate("nothing", who="ada")
    for overlap_ms in (-1, True):
        with pytest.raises(InvalidRequest, match="overlapMs"):
            await office.keys.rotate(new.key.id, who="ada", overlap_ms=overlap_ms)


async def test_of_two_simultaneous_rotations_one_wins(office: KeychainProcess) -> None:
    old = await office.make()
    both = await asyncio.gather(
        office.keys.rotate(old.key.id, who="a"),
        elsewhere(office).keys.rotate(old.key.id, who="b"),
        return_exceptions=True,
    )
    assert sorted(type(one).__name__ for one in both) == ["CommandRefused", "NewKey"]
    assert len(await office.keys.list()) == 2


async def test_the_last_use_is_written_once_a_minute_in_the_background(office: KeychainProcess) -> None:
    new = await office.make()
    assert (await office.keys.get(new.key.id)).last_used_at is None
    for _ in range(10):
        office.clock.advance(30_000)
        assert await office.lets_in(new)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert office.store.asked["put api_key_use"] == 5
    await office.keys.close()
    used = (await elsewhere(office).keys.get(new.key.id)).last_used_at
    assert used == datetime.fromtimestamp(office.clock.now_ms() / 1000, UTC)


async def test_a_failed_write_of_the_last_use_blocks_no_request(office: KeychainProcess) -> None:
    new = await office.make()
    assert await office.lets_in(new)
    office.store.away = True
    await office.keys.close()
    office.store.away = False
    assert await office.lets_in(new)


async def test_while_the_store_is_unavailable_requests_are_neither_accepted_nor_refused_for_good(
    office: KeychainProcess,
) -> None:
    new = await office.make()
    office.store.away = True
    with pytest.raises(StoreUnavailable):
        await office.lets_in(new)
    office.store.away = False
    assert await office.lets_in(new)


async def test_the_keys_of_a_tenant_are_listed_and_limited_separately(office: KeychainProcess) -> None:
    await office.tenants.create("acme", who="ada")
    mine = [await office.make("acme") for _ in range(3)]
    await office.make("default")
    found = await office.keys.list("acme")
    assert [key.id for key in found] == sorted(new.key.id for new in mine)
    assert {key.tenant for key in found} == {"acme"}
    assert len(await office.keys.list()) == 4
    first, *rest = found
    assert await office.keys.list("acme", after=first.id) == tuple(rest)
    assert (await office.tenants.get("acme")).key_count == 3
    assert await office.keys.list("nobody") == ()


async def test_the_first_key_is_created_only_once(office: KeychainProcess) -> None:
    assert await office.keys.is_empty()
    await office.make()
    assert not await office.keys.is_empty()


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"scopes": []}, "scopes"),
        ({"scopes": ["root"]}, "scopes"),
        ({"rate_per_second": -1.0}, "ratePerSecond"),
        ({"rate_per_second": float("nan")}, "ratePerSecond"),
        ({"expires_at": datetime(2000, 1, 1, tzinfo=UTC)}, "expiresAt"),
        ({"expires_at": datetime(2100, 1, 1)}, "expiresAt"),
    ],
)
async def test_an_invalid_field_is_named_and_nothing_is_created(
    office: KeychainProcess, wrong: dict[str, object], field: str
) -> None:
    fields: dict[str, object] = {"name": "shop", "scopes": ["send"], **wrong}
    with pytest.raises(InvalidRequest) as refused:
        await office.keys.create("default", who="ada", **fields)  # type: ignore[arg-type]
    assert refused.value.field == field
    assert await office.keys.is_empty()


async def test_no_key_is_created_for_an_unknown_tenant(office: KeychainProcess) -> None:
    for tenant in ("acme", "*", ""):
        with pytest.raises(NotFound):
            await office.make(tenant)
    assert await office.keys.is_empty()


# Tenants ---------------------------------------------------------------------------------------------


async def test_the_keys_of_a_disabled_tenant_are_refused_until_it_is_enabled(office: KeychainProcess) -> None:
    other = elsewhere(office)
    await office.tenants.create("acme", who="ada")
    new = await office.make("acme")
    assert await other.lets_in(new)
    disabled = await office.tenants.disable("acme", who="bob")
    assert (disabled.enabled, disabled.disabled_by) == (False, "bob")
    assert not await office.lets_in(new)
    office.clock.advance(5_000)
    assert not await other.lets_in(new)
    assert (await office.tenants.enable("acme", who="bob")).enabled
    assert await office.lets_in(new)


async def test_tenants_are_listed_by_name_including_those_created_implicitly(office: KeychainProcess) -> None:
    await office.tenants.create("zebra", who="ada")
    await office.tenants.create("acme", who="ada")
    listed = await office.tenants.list()
    assert [tenant.name for tenant in listed] == ["acme", "default", "zebra"]
    assert [tenant.created_by for tenant in listed] == ["ada", "", "ada"]
    assert [one.name for one in await office.tenants.list(after="acme", limit=1)] == ["default"]


@pytest.mark.source("003", "59", "80", "287")
async def test_a_tenant_s_name_keeps_its_capitals(office: KeychainProcess) -> None:
    """License keys have capitals. Names that differ in case only are two tenants."""
    for name in ("LIC-4F2A.Prod", "lic-4f2a.prod"):
        assert (await office.tenants.create(name, who="ada")).name == name
        assert await office.tenants.enabled(name)
    assert not await office.tenants.enabled("LIC-4F2A.PROD")


async def test_a_tenant_is_created_once_under_an_unambiguous_name(office: KeychainProcess) -> None:
    await office.tenants.create("acme", who="ada")
    for name in ("acme", "default"):
        with pytest.raises(VersionConflict):
            await office.tenants.create(name, who="ada")
    with pytest.raises(InvalidRequest, match="name: must have"):
        await office.tenants.create("Acme Inc.", who="ada")
    with pytest.raises(NotFound):
        await office.tenants.disable("nobody", who="ada")
    with pytest.raises(NotFound):
        await office.tenants.get("nobody")


async def test_the_default_tenant_can_be_disabled_like_any_other(office: KeychainProcess) -> None:
    new = await office.make("default")
    await office.tenants.disable("default", who="ada")
    assert not await office.lets_in(new)
    assert not await office.tenants.enabled("nobody")
