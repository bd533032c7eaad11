"""The service, wired from its settings."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from homing import Homing, config
from homing.compose import service
from homing.config import Settings
from homing.core.access import Scope
from homing.core.errors import ConfigError


def settings(tmp_path: Path, **own: Any) -> Settings:
    return config.load(env={}, flags={"store": str(tmp_path / "homing.db"), "service": own})


async def test_the_first_key_is_made_once_and_is_an_admins_of_the_settings_tenant(tmp_path: Path) -> None:
    mine = settings(tmp_path)
    async with Homing(loaded_settings=mine) as homing:
        assert await service.first_key(mine, homing)
        assert not await service.first_key(mine, homing)
        file = service.key_file(mine)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        caller = await service.gate(mine, homing).caller(f"Bearer {file.read_text().strip()}")
        assert caller is not None
        assert (caller.tenant, caller.scopes) == ("default", frozenset({Scope.ADMIN}))


async def test_a_key_that_could_not_be_made_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = settings(tmp_path)
    async with Homing(loaded_settings=mine) as homing:

        async def broken(*_: Any, **__: Any) -> None:
            raise OSError("the disk is full")

        monkeypatch.setattr(homing.keys, "create", broken)
        with pytest.raises(OSError, match="full"):
            await service.first_key(mine, homing)
        assert not service.key_file(mine).exists()


async def test_a_place_where_the_key_cannot_be_put_is_named(tmp_path: Path) -> None:
    mine = settings(tmp_path, key_file=str(tmp_path / "nowhere" / "key"))
    async with Homing(loaded_settings=mine) as homing:
        with pytest.raises(ConfigError, match=r"service\.key_file: .* cannot be written"):
            await service.first_key(mine, homing)
        assert await homing.keys.is_empty()


@pytest.mark.parametrize(
    ("store", "key_file", "expected"),
    [
        ("data/homing.db", "", "data/homing-admin.key"),
        ("sqlite:data/homing.db", "", "data/homing-admin.key"),
        ("postgresql://db/homing", "", "homing-admin.key"),
        ("memory:", "", "homing-admin.key"),
        ("data/homing.db", "/run/secrets/key", "/run/secrets/key"),
    ],
)
def test_the_key_lies_beside_the_store_or_where_it_was_said(store: str, key_file: str, expected: str) -> None:
    loaded = config.load(env={}, flags={"store": store, "service": {"key_file": key_file}})
    assert service.key_file(loaded) == Path(expected)


async def test_a_wrong_issuer_is_named_with_its_place(tmp_path: Path) -> None:
    mine = settings(
        tmp_path, jwt=[{"issuer": "https://id.example.org", "audience": "homing", "algorithm": "none"}]
    )
    async with Homing(loaded_settings=mine) as homing:
        with pytest.raises(ConfigError, match=r"service\.jwt\[0\]"):
            service.gate(mine, homing)


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
def test_a_setting_that_makes_no_sense_is_named(tmp_path: Path, key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"service\.{key}"):
        service.listen(settings(tmp_path, **{key: value}))
