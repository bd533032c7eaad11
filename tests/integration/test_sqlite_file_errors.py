"""Problems with the file, and the store's errors."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from homing import Homing
from homing.core.errors import (
    SchemaError,
    StoreBusy,
    StoreError,
    StoreReadOnly,
    StoreUnavailable,
)
from homing.core.notifications import Filter, Status
from homing.core.ports.stores import Retention
from homing.core.routing.rate_limits import RateLimit
from homing.stores.sqlite import SqliteStore
from homing.stores.sqlite.migrations import MIGRATIONS
from homing.testing.builders import a_claim_request, a_notification, a_submission
from homing.testing.store_suite.harness import claim_all, count_by_status

_ALL = tuple(migration.name for migration in MIGRATIONS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "homing.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, busy_timeout_ms=100)
    await store.open()
    await store.migrate()
    yield store
    await store.close()


def read(path: Path) -> bytes:
    return path.read_bytes()


def write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


async def test_only_the_owner_may_read_a_new_file_and_its_log(store: SqliteStore, path: Path) -> None:
    await store.accept([a_submission()])

    found = {one.name: mode_of(one) for one in path.parent.iterdir()}
    assert found == {"homing.db": 0o600, "homing.db-wal": 0o600, "homing.db-shm": 0o600}


async def test_a_file_that_others_may_read_stays_as_its_owner_has_set_it(path: Path) -> None:
    write(path, b"")
    os.chmod(path, 0o640)  # noqa: PTH101
    opened = SqliteStore(path)
    await opened.open()
    await opened.migrate()
    await opened.close()

    assert mode_of(path) == 0o640


async def test_a_locked_file_is_busy_only_while_it_is_locked(store: SqliteStore, path: Path) -> None:
    await store.accept([a_submission()])
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusy, match="try again"):
        await store.accept([a_submission()])
    calls = (store.accept([a_submission()]), store.claim(a_claim_request()))
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(answer) for answer in answers] == [StoreBusy] * 2
    assert await count_by_status(store) == {Status.PENDING: 1}  # reading is still possible
    other.execute("ROLLBACK")
    other.close()
    await store.accept([a_submission()])
    assert len(await claim_all(store)) == 2


_SUSPENDS_ITSELF = """
import ctypes, os, signal, sqlite3, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it must not outlive the test
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
os.kill(os.getpid(), signal.SIGSTOP)
connection.execute("ROLLBACK")
"""


@contextmanager
def suspended_process(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a process that suspends itself inside a transaction."""
    suspended = subprocess.Popen([sys.executable, "-c", _SUSPENDS_ITSELF, str(path)])
    try:
        os.waitpid(suspended.pid, os.WUNTRACED)
        yield suspended
    finally:
        suspended.kill()
        suspended.wait()


async def test_a_process_that_is_suspended_while_it_writes_is_reported_and_the_others_go_on_afterwards(
    store: SqliteStore, path: Path
) -> None:
    with suspended_process(path) as suspended:
        with pytest.raises(StoreBusy, match=r"a process is suspended or hangs while it writes \(`fuser "):
            await store.accept([a_submission()])
        assert await count_by_status(store) == {}, "reading is still possible"
        suspended.send_signal(signal.SIGCONT)
        await asyncio.to_thread(suspended.wait, 60)
        await store.accept([a_submission()])
        assert len(await claim_all(store)) == 1


async def test_a_lock_released_in_time_is_awaited(path: Path) -> None:
    store = SqliteStore(path, busy_timeout_ms=60_000)
    await store.open()
    await store.migrate()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    accepting = asyncio.ensure_future(store.accept([a_submission()]))
    await asyncio.sleep(0.1)
    assert not accepting.done()
    other.execute("ROLLBACK")
    other.close()
    assert (await accepting)[0].ids
    await store.close()


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "nowhere" / "homing.db")
    with pytest.raises(StoreUnavailable, match=f"Create {tmp_path}/nowhere"):
        await store.open()


async def test_a_folder_in_place_of_the_file_is_reported_as_such(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="it is a folder"):
        await SqliteStore(tmp_path).open()


USED_WITHOUT_PERMISSION = """
import asyncio, os, sys
from homing.core.errors import StoreReadOnly
from homing.stores.sqlite import SqliteStore
from homing.testing.builders import a_submission

async def use():
    store = SqliteStore(sys.argv[1])
    try:
        await store.open()
        await store.migrate()
        await store.accept([a_submission()])
    finally:
        await store.close()

asyncio.run(use())  # everything is imported now: another user may not be able to read Python's files
os.chmod(sys.argv[1], 0o444)
if os.geteuid() == 0:  # root may write everywhere
    os.setgid(65534)
    os.setuid(65534)
try:
    asyncio.run(use())
except StoreReadOnly as error:
    print(error)
"""


@pytest.fixture
def for_everybody() -> Iterator[Path]:
    """A folder that any user can enter and write to. pytest's folders belong to the user of the tests."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        yield folder


async def test_a_file_without_permission_to_write_is_read_only(for_everybody: Path) -> None:
    path = for_everybody / "homing.db"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", USED_WITHOUT_PERMISSION, str(path)), stdout=PIPE, stderr=PIPE
    )
    out, err = await process.communicate()
    assert b"permissions" in out, (out, err)


async def test_a_connection_that_may_not_write_is_read_only(store: SqliteStore) -> None:
    await store.accept([a_submission()])
    assert store._writer is not None
    store._writer._connection.execute("PRAGMA query_only = ON")
    with pytest.raises(StoreReadOnly, match="permissions"):
        await store.accept([a_submission()])
    store._writer._connection.execute("PRAGMA query_only = OFF")
    assert await count_by_status(store) == {Status.PENDING: 1}


def take_away(path: Path, *, replace: bool = False) -> None:
    """Moves the file to another name. With `replace`, puts a copy in its place."""
    away = path.rename(path.with_name("away.db"))
    if replace:
        path.write_bytes(away.read_bytes())


def put_back(path: Path) -> None:
    """Undoes `take_away`."""
    path.with_name("away.db").replace(path)


@pytest.mark.parametrize("how", ["deleted", "replaced"])
async def test_nothing_is_accepted_into_a_file_that_is_gone(store: SqliteStore, path: Path, how: str) -> None:
    await store.accept([a_submission(key="before")])
    take_away(path, replace=how == "replaced")
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match=rf"homing\.db was {how} while it was in use"):
            await store.accept([a_submission()])
        with pytest.raises(StoreUnavailable, match="Nothing can be stored"):
            await store.tallies(None)
        with pytest.raises(StoreUnavailable):
            await store.claim(a_claim_request())
    put_back(path)
    assert (await store.accept([a_submission()]))[0].ids


async def test_a_change_of_the_working_folder_is_not_a_deleted_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = SqliteStore("homing.db")
    await store.open()
    await store.migrate()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert (await store.accept([a_submission()]))[0].ids
    await store.close()


async def test_readiness_shows_a_deleted_file(path: Path) -> None:
    async with Homing(path, providers={"mail": lambda delivery: None}) as homing:
        assert (await homing.readiness()).ready
        take_away(path)
        readiness = await homing.readiness()
        assert (readiness.ready, readiness.store) == (False, "STORE_UNAVAILABLE")
        with pytest.raises(StoreUnavailable):
            await homing.send("ada@example.org", channel="email", body="x")


async def test_health_fails_if_nothing_can_be_written(store: SqliteStore, path: Path) -> None:
    """A limit of the file size stands in for a full disk. Reading still works."""
    await store.accept([a_submission(*(a_notification() for _ in range(2_000)))])  # the log exceeds the limit

    async def homing(command: str, limit: int) -> tuple[int | None, str]:
        script = f"ulimit -f {limit}; exec {Path(sys.executable).parent}/homing {command} --store {path}"
        process = await asyncio.create_subprocess_exec("bash", "-c", script, stdout=PIPE, stderr=PIPE)
        _, errors = await process.communicate()
        return process.returncode, errors.decode()

    assert await homing("health", 1_000_000) == (0, "")
    assert (await homing("stats", 64))[0] == 0
    code, errors = await homing("health", 64)
    assert code == 4
    assert "error:" in errors


async def test_a_file_that_is_not_a_database_is_refused_unchanged(path: Path) -> None:
    write(path, b"Dear diary, " * 1000)
    with pytest.raises(StoreError, match="not an SQLite database"):
        await SqliteStore(path).open()
    assert read(path).startswith(b"Dear diary")


async def test_a_damaged_file_is_reported_as_such(store: SqliteStore, path: Path) -> None:
    await store.accept([a_submission(*(a_notification() for _ in range(500)))])
    await store.close()
    whole = read(path)
    write(path, whole[: len(whole) // 2] + b"\xff" * (len(whole) - len(whole) // 2))
    await store.open()
    with pytest.raises(StoreError, match="damaged"):
        await store.list("default", Filter())


async def test_a_newer_schema_is_refused_with_both_versions(store: SqliteStore, path: Path) -> None:
    await store.close()
    connection = sqlite3.connect(path)
    connection.execute("INSERT INTO homing_schema VALUES (999, '0999_from_the_future', 0)")
    connection.commit()
    connection.close()
    with pytest.raises(SchemaError, match=rf"version 999.*this release has {len(_ALL)}\b"):
        await store.open()
    with pytest.raises(StoreError, match="closed"):
        await store.accept([a_submission()])


async def test_a_file_without_a_schema_is_refused_with_the_command_to_run(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    calls = (
        store.accept([a_submission()]),
        store.claim(a_claim_request()),
        store.list("default", Filter()),
        store.tallies(None),
        store.prune(Retention(), 10),
        store.take("k", RateLimit(1.0), 1),
        store.size(),
    )
    for answer in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(answer, SchemaError)
        assert "homing db migrate" in str(answer)
    assert await store.migrate() == _ALL
    assert await store.migrate() == ()
    await store.accept([a_submission()])
    assert (await store.size())["schema_version"] == len(_ALL)
    await store.close()


async def test_data_of_the_first_release_works_after_the_migrations(path: Path) -> None:
    def write_as_the_first_release(id: str) -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(
                "INSERT INTO homing_notifications (id, tenant, batch_id, lane, channel, mode, type, category,"
                " priority, origin, provider, outlet, pinned, address, status, max_age_ms, created_at,"
                " updated_at, aged_from, due_at, deadline_at) VALUES (?, 'default', 'b', 'standard.email',"
                " 'email', 'standard', 't', 't', 'medium', '', 'p', 'p', 0, 'a@example.org', 'pending',"
                " 1000, 1, 1, 1, 1, 1001)",
                (id,),
            )
            seq = connection.execute("SELECT max(seq) FROM homing_notifications").fetchone()[0]
            message = '{"recipient": {"email": "a@example.org"}, "content": {}}'
            connection.execute("INSERT INTO homing_messages VALUES (?, ?)", (seq, message))

    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript(MIGRATIONS[0].sql)
        connection.execute("CREATE TABLE homing_schema (version INTEGER PRIMARY KEY, name, applied_at)")
        connection.execute("INSERT INTO homing_schema VALUES (1, '0001_initial', 1)")
    write_as_the_first_release("before")
    store = SqliteStore(path)
    await store.open()
    assert await store.migrate() == _ALL[1:]
    write_as_the_first_release("after")  # a process that was not restarted yet
    for id in ("before", "after"):
        history = await store.get("default", id)
        assert history is not None
        notification = history.notification
        assert (notification.attempts_before, notification.max_attempts) == (0, None)
    await store.close()


async def test_of_many_concurrent_migrations_one_does_the_work(path: Path) -> None:
    stores = [SqliteStore(path, busy_timeout_ms=60_000) for _ in range(8)]
    await asyncio.gather(*(store.open() for store in stores))
    applied = await asyncio.gather(*(store.migrate() for store in stores))
    assert sorted(applied) == [()] * 7 + [_ALL]
    await stores[0].accept([a_submission()])
    assert await count_by_status(stores[1]) == {Status.PENDING: 1}
    await asyncio.gather(*(store.close() for store in stores))


async def test_a_new_file_that_others_switch_to_a_write_ahead_log_at_the_same_time_is_opened(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite then reports at once that the file is locked, whatever its timeout is."""
    refusals = [2]

    class RefusedFirst(sqlite3.Connection):
        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            if "journal_mode" in sql and refusals[0]:
                refusals[0] -= 1
                error = sqlite3.OperationalError("database is locked")
                error.sqlite_errorcode = sqlite3.SQLITE_BUSY
                raise error
            return super().execute(sql, *parameters)

    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=RefusedFirst))
    store = SqliteStore(path)
    await store.open()
    await store.migrate()
    await store.accept([a_submission()])
    assert await count_by_status(store) == {Status.PENDING: 1}
    assert refusals == [0]
    await store.close()


async def test_tables_of_an_application_can_be_in_the_same_file(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE notifications (id INTEGER PRIMARY KEY, mine TEXT)")
    connection.execute("PRAGMA user_version = 77")
    connection.commit()
    connection.close()
    store = SqliteStore(path)
    await store.open()
    await store.migrate()
    await store.accept([a_submission()])
    assert await count_by_status(store) == {Status.PENDING: 1}
    await store.close()
