"""A backup of a SQLite store that is in use: complete, consistent, verified, and it blocks no sender."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
import threading
from contextlib import closing
from pathlib import Path

import pytest

from homing import Homing, SendResult, SyncHoming
from homing.core.errors import ConfigError, SchemaError, StoreError, StoreUnavailable
from homing.stores.sqlite.backup import back_up

BODY = "x" * 1_000


def quiet(delivery: object) -> None:
    """A provider that accepts everything."""


def nothing(done: int, total: int) -> None:
    """Ignores the progress."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "homing.db"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "backup.db"


async def send(homing: Homing, number: int) -> set[str]:
    requests = [
        {"recipient": f"u{n}@example.org", "channel": "email", "content": {"body": BODY}}
        for n in range(number)
    ]
    results = [one async for one in homing.send_many(requests)]
    return {one.id for one in results if isinstance(one, SendResult)}


def size_of(path: Path) -> int:
    return path.stat().st_size


def stored_ids(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as connection:
        return {id for (id,) in connection.execute("SELECT id FROM homing_notifications")}


async def test_a_backup_under_load_has_everything_that_was_acknowledged_before_it_began(
    path: Path, target: Path
) -> None:
    async with Homing(path, providers={"mail": quiet}) as homing:
        before = await send(homing, 1_500)
        begun, accepted = asyncio.Event(), threading.Event()
        loop, steps = asyncio.get_running_loop(), []

        def on_step(done: int, total: int) -> None:
            steps.append((done, total))
            loop.call_soon_threadsafe(begun.set)
            assert accepted.wait(30), "the backup blocks a send"

        copying = asyncio.create_task(asyncio.to_thread(back_up, path, target, on_step))
        await begun.wait()
        during = await send(homing, 500)
        assert len(during) == 500
        accepted.set()
        while not copying.done():
            await send(homing, 10)
        result = await copying
    assert len(steps) > 2, "the copy is made in steps"
    assert steps[-1][0] == steps[-1][1]
    assert stored_ids(target) == before
    assert (result.notifications, result.bytes) == (1_500, size_of(target))
    async with Homing(target, providers={"mail": quiet}) as restored:
        assert (await restored.process(2_000)).succeeded == 1_500


def test_only_the_owner_can_read_a_backup_and_it_is_one_file(path: Path, target: Path) -> None:
    with SyncHoming(path, providers={"mail": quiet}) as homing:
        homing.send("ada@example.org", channel="email", body=BODY)
        back_up(path, target, nothing)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert [one.name for one in target.parent.glob("backup*")] == ["backup.db"]


def test_an_existing_file_is_never_overwritten(path: Path, target: Path) -> None:
    with SyncHoming(path, providers={"mail": quiet}):
        target.write_text("mine")
        with pytest.raises(ConfigError, match="never overwrites"):
            back_up(path, target, nothing)
        assert target.read_text() == "mine"
        with pytest.raises(ConfigError, match="cannot be created: No such file"):
            back_up(path, target.parent / "missing" / "backup.db", nothing)


def test_a_backup_that_fails_leaves_no_file(path: Path, target: Path) -> None:
    with SyncHoming(path, providers={"mail": quiet}):

        def fail(done: int, total: int) -> None:
            raise InterruptedError

        with pytest.raises(InterruptedError):
            back_up(path, target, fail)
        assert list(target.parent.glob("backup*")) == []


def test_a_database_without_tables_is_refused(path: Path, target: Path) -> None:
    path.touch()
    with pytest.raises(SchemaError, match="run homing db migrate first"):
        back_up(path, target, nothing)
    assert list(target.parent.glob("backup*")) == []


def test_another_database_is_refused(path: Path, target: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE orders (number INTEGER)")
    with pytest.raises(SchemaError):
        back_up(path, target, nothing)
    path.write_bytes(b"not a database" * 1_000)
    with pytest.raises(StoreError):
        back_up(path, target, nothing)
    assert list(target.parent.glob("backup*")) == []


def test_a_backup_of_a_missing_store_leaves_no_files(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="does not exist"):
        back_up(tmp_path / "none.db", tmp_path / "copy.db", nothing)
    assert list(tmp_path.iterdir()) == []
