"""The service, wired from its settings."""

from __future__ import annotations

import asyncio
import stat
import time
from pathlib import Path
from typing import Any

import jwt
import pytest

from homing import Homing
from homing.compose import service
from homing.core.access.scopes import Scope
from homing.core.errors import ConfigError
from homing.settings import Settings, load_settings


def settings(tmp_path: Path, **own: Any) -> Settings:
    return load_settings(env={}, flags={"store": str(tmp_path / "homing.db"), "service": own})


async def test_the_first_key_is_created_once_as_an_admin_s_of_the_settings_tenant(tmp_path: Path) -> None:
    mine = settings(tmp_path)
    async with Homing(loaded_settings=mine) as homing:
        assert await service.ensure_first_key(mine, homing)
        assert not await service.ensure_first_key(mine, homing)
        file = service.key_file(mine)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        caller = await service.build_gate(mine, homing).caller(f"Bearer {file.read_text().strip()}")
        assert caller is not None
        assert (caller.tenant, caller.scopes) == ("default", frozenset({Scope.ADMIN}))


async def test_a_key_that_could_not_be_stored_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = settings(tmp_path)
    async with Homing(loaded_settings=mine) as homing:

        async def broken(*_: Any, **__: Any) -> None:
            raise OSError("the disk is full")

        monkeypatch.setattr(homing.keys, "create", broken)
        with pytest.raises(OSError, match="full"):
            await service.ensure_first_key(mine, homing)
        assert not service.key_file(mine).exists()


class Killed(BaseException):
    """Simulates the end of the process."""


@pytest.mark.parametrize("when", ["before the store has the key", "after the store has the key"])
async def test_a_start_after_a_crash_leaves_one_file_with_a_valid_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    mine = settings(tmp_path)
    async with Homing(loaded_settings=mine) as homing:
        put = homing.keys._put

        async def killed(*given: Any) -> bool:
            if when.startswith("after"):
                await put(*given)
            raise Killed

        with monkeypatch.context() as during:
            during.setattr(homing.keys, "_put", killed)
            with pytest.raises(Killed):
                await service.ensure_first_key(mine, homing)
        assert not service.key_file(mine).exists(), "there is no file without a key"
    async with Homing(loaded_settings=mine) as homing:
        assert await service.ensure_first_key(mine, homing)
        await assert_good(mine, homing)
        assert len(await homing.keys.list()) == 1
        assert not await service.ensure_first_key(mine, homing)
    assert sorted(path.name for path in service.key_file(mine).parent.iterdir()) == [
        ".gitignore",
        "admin.key",
    ]


@pytest.mark.parametrize("name", ["homing-admin.key", ".homing/admin.key"])
@pytest.mark.parametrize("stored", [False, True])
async def test_an_empty_key_file_left_by_a_crash_is_replaced(tmp_path: Path, name: str, stored: bool) -> None:
    """Earlier releases created the file first, so the key in the store may be in no file."""
    mine = settings(tmp_path)
    empty = tmp_path / name
    async with Homing(loaded_settings=mine) as homing:
        if stored:
            await homing.tenants.ensure("default", who="homing")
            await homing.keys.create("default", "first admin", [Scope.ADMIN], who="homing")
        empty.parent.mkdir(exist_ok=True)
        empty.touch()
        assert await service.ensure_first_key(mine, homing)
        await assert_good(mine, homing)
        assert not (tmp_path / "homing-admin.key").exists()


async def test_a_key_file_of_an_earlier_release_stays_in_use(tmp_path: Path) -> None:
    mine = settings(tmp_path)
    old = tmp_path / "homing-admin.key"
    async with Homing(loaded_settings=mine) as homing:
        await homing.tenants.ensure("default", who="homing")
        key = await homing.keys.create("default", "first admin", [Scope.ADMIN], who="homing")
        old.write_text(f"{key.text}\n")
        assert not await service.ensure_first_key(mine, homing)
        assert service.key_file(mine) == old
        await assert_good(mine, homing)
    assert not (tmp_path / ".homing").exists()


async def test_two_simultaneous_starts_create_one_key(tmp_path: Path) -> None:
    mine = settings(tmp_path)
    async with Homing(loaded_settings=mine) as one, Homing(loaded_settings=mine) as two:
        made = await asyncio.gather(service.ensure_first_key(mine, one), service.ensure_first_key(mine, two))
        assert sorted(made) == [False, True]
        assert len(await one.keys.list()) == 1
        await assert_good(mine, two)


async def test_a_prepared_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    mine = settings(tmp_path)
    folder = tmp_path / ".homing"
    folder.mkdir()
    (folder / "admin.key.new").touch(mode=0o644)
    async with Homing(loaded_settings=mine) as homing:
        with pytest.raises(ConfigError, match=r"admin\.key\.new can be read or written by others"):
            await service.ensure_first_key(mine, homing)
        assert await homing.keys.is_empty()


async def test_leftovers_of_a_failed_start_cause_no_second_key(tmp_path: Path) -> None:
    """The key in `.new` never reached the store, and a key was created by hand since then."""
    mine = settings(tmp_path)
    async with Homing(loaded_settings=mine) as homing:
        await homing.tenants.ensure("default", who="ada")
        await homing.keys.create("default", "by hand", [Scope.ADMIN], who="ada")
        left = tmp_path / ".homing" / "admin.key.new"
        left.parent.mkdir()
        left.touch(mode=0o600)
        left.write_text("hm_unknown\n")
        assert not await service.ensure_first_key(mine, homing)
        assert len(await homing.keys.list()) == 1
        assert not left.exists()
        assert not service.key_file(mine).exists()


async def test_a_key_file_that_this_user_cannot_read_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user created it. The service starts, because its store has a key."""
    mine = settings(tmp_path)
    async with Homing(loaded_settings=mine) as homing:
        await service.ensure_first_key(mine, homing)

        def denied(file: Path) -> bytes:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(Path, "read_bytes", denied)
        assert not await service.ensure_first_key(mine, homing)
        assert len(await homing.keys.list()) == 1


async def assert_good(mine: Settings, homing: Homing) -> None:
    """Checks that the key in the file is an admin's."""
    file = service.key_file(mine)
    caller = await service.build_gate(mine, homing).caller(f"Bearer {file.read_text().strip()}")
    assert caller is not None
    assert caller.scopes == frozenset({Scope.ADMIN})


async def test_a_key_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    mine = settings(tmp_path, key_file=str(tmp_path / "nowhere" / "key"))
    async with Homing(loaded_settings=mine) as homing:
        with pytest.raises(ConfigError, match=r"service\.key_file: .* cannot be written"):
            await service.ensure_first_key(mine, homing)
        assert await homing.keys.is_empty()


@pytest.mark.parametrize(
    ("store", "key_file", "expected"),
    [
        ("data/homing.db", "", "data/.homing/admin.key"),
        ("sqlite:data/homing.db", "", "data/.homing/admin.key"),
        ("postgresql://db/homing", "", ".homing/admin.key"),
        ("memory:", "", ".homing/admin.key"),
        ("data/homing.db", "/run/secrets/key", "/run/secrets/key"),
    ],
)
def test_the_key_file_is_next_to_the_store_or_at_its_configured_path(
    store: str, key_file: str, expected: str
) -> None:
    loaded = load_settings(env={}, flags={"store": store, "service": {"key_file": key_file}})
    assert service.key_file(loaded) == Path(expected)


async def test_a_wrong_issuer_is_named_with_its_index(tmp_path: Path) -> None:
    mine = settings(
        tmp_path, jwt=[{"issuer": "https://id.example.org", "audience": "homing", "algorithm": "none"}]
    )
    async with Homing(loaded_settings=mine) as homing:
        with pytest.raises(ConfigError, match=r"service\.jwt\[0\]"):
            service.build_gate(mine, homing)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("listen", "nowhere"),
        ("workers", 0),
        ("max_requests", 0),
        ("read_ms", 0),
        ("rate_per_second", -1.0),
        ("public_url", "notify.example.org"),
        ("public_url", "https://notify.example.org/?x=1"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"service\.{key}"):
        service.listen_address(settings(tmp_path, **{key: value}))


async def test_keys_of_issuers_are_replaced_at_runtime_and_two_hold_during_a_rotation(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("old", "new")}
    for name, file in files.items():
        file.write_text(name * 20)

    def with_keys(*names: str) -> Settings:
        common = {"issuer": "https://id", "audience": "homing", "algorithm": "HS256", "tenant": "default"}
        tables = [{**common, "scopes": ["read"], "key": f"file:{files[name]}"} for name in names]
        return settings(tmp_path, jwt=tables)

    async with Homing(loaded_settings=with_keys("old")) as homing:
        served = service.build_service(with_keys("old"), homing)
        homing.reloader.parts.append(service.reloadable_issuers(served))
        await homing.tenants.ensure("default", who="test")

        async def accepted() -> list[str]:
            now = int(time.time())
            claims = {"iss": "https://id", "aud": "homing", "sub": "ann", "iat": now, "exp": now + 60}
            tokens = {name: jwt.encode(claims, name * 20, "HS256") for name in files}
            gate = served.gatekeeper
            return [name for name, token in tokens.items() if await gate.caller(f"Bearer {token}")]

        assert await accepted() == ["old"]
        done = await homing.reload(with_keys("new", "old"), who="cli:ann")
        assert any(path.startswith("service.jwt[1]") for path in done.changed)
        assert await accepted() == ["old", "new"]
        files["new"].unlink()
        with pytest.raises(ConfigError, match=r"service\.jwt\[0\]\.key"):
            await homing.reload(with_keys("new"))
        assert await accepted() == ["old", "new"], "nothing was changed"
