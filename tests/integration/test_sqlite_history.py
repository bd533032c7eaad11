"""What happens to a running process if the contents of its SQLite file go back to an earlier state."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from homing.core.errors import StoreUnavailable
from homing.core.lifecycle.commands import Command, CommandName
from homing.core.notifications import DEFAULT_TENANT, Status
from homing.stores.sqlite import SqliteStore, migrations
from homing.stores.sqlite.backup import back_up
from homing.stores.sqlite.migrations import MIGRATIONS
from homing.testing.builders import a_notification, a_submission, retry_in, sent
from homing.testing.store_suite.harness import (
    accept_and_claim,
    accept_one,
    claim_all,
    claim_one,
    list_all,
    status_of,
)
from support.event_loops import LoopKind


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "homing.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path)
    await store.open()
    await store.migrate()
    yield store
    await store.close()


class Snapshot:
    """The contents of a file in use, which can be restored into the same file as often as needed.

    The command `.restore` of the `sqlite3` shell does the same. Open connections are not disturbed, and no
    property of the file shows it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._copy = sqlite3.connect(":memory:")
        with closing(sqlite3.connect(path)) as live:
            live.backup(self._copy)

    def restore(self) -> None:
        with closing(sqlite3.connect(self._path)) as live:
            self._copy.backup(live)


async def test_a_settlement_is_not_written_to_another_notification_with_the_same_number(
    store: SqliteStore, path: Path
) -> None:
    before = Snapshot(path)
    lost = await accept_and_claim(store)
    before.restore()
    other = await accept_and_claim(store)
    result = await store.settle([sent(lost, "m-1")])
    assert (result.applied, result.missing) == ((), (lost.id,))
    history = await store.get(DEFAULT_TENANT, other.id)
    assert history is not None
    assert (history.notification.status, history.attempts) == (Status.SENDING, ())
    assert (await store.settle([sent(other, "m-2")])).applied == (other.id,)


async def test_a_whole_batch_is_settled_although_some_of_its_notifications_are_lost(
    store: SqliteStore, path: Path
) -> None:
    kept = [await accept_one(store) for _ in range(20)]
    before = Snapshot(path)
    lost = [await accept_one(store) for _ in range(20)]
    claims = await claim_all(store)
    before.restore()
    new = [await accept_one(store) for _ in range(20)]
    again = await claim_all(store, worker="w-2")
    assert {claim.id for claim in again} == {*kept, *new}
    result = await store.settle([sent(claim, f"m-{claim.id}") for claim in claims])
    assert (result.applied, set(result.stale), set(result.missing)) == ((), set(kept), set(lost))
    assert {await status_of(store, id) for id in (*kept, *new)} == {Status.SENDING}
    assert len((await store.settle([sent(claim) for claim in again])).applied) == 40


async def test_a_cancelled_notification_is_not_revived_by_an_attempt_from_before(
    store: SqliteStore, path: Path
) -> None:
    await accept_one(store)
    before = Snapshot(path)
    claim = await claim_one(store)
    before.restore()
    await store.amend(DEFAULT_TENANT, [claim.id], Command(name=CommandName.CANCEL, who="operator"))
    result = await store.settle([retry_in(claim, 0)])
    assert (result.applied, result.stale) == ((), (claim.id,))
    assert await status_of(store, claim.id) is Status.CANCELLED


async def test_a_queue_that_was_lost_is_created_again(store: SqliteStore, path: Path) -> None:
    before = Snapshot(path)
    await accept_one(store, tenant="new")
    before.restore()
    id = await accept_one(store, tenant="new")
    assert [claim.id for claim in await claim_all(store)] == [id]


# Files that are deleted, replaced or overwritten ------------------------------------------------------


def make_backup(path: Path) -> Path:
    """Makes a backup with Homing's own command."""
    back_up(path, path.with_name("backup.db"), lambda done, total: None)
    return path.with_name("backup.db")


def move_away(path: Path) -> None:
    """Moves the file away together with its log, as the documentation says."""
    (path.parent / "broken").mkdir(exist_ok=True)
    for ending in ("", "-wal", "-shm"):
        path.with_name(path.name + ending).rename(path.parent / "broken" / (path.name + ending))


def size_of(path: Path) -> int:
    return path.stat().st_size


async def ids_in(path: Path) -> set[str]:
    """Returns the ids that a process sees that opens the file now."""
    other = SqliteStore(path)
    await other.open()
    found = {one.id for one in await list_all(other)}
    await other.close()
    return found


async def test_a_file_that_was_replaced_is_opened_again(store: SqliteStore, path: Path) -> None:
    kept = await accept_one(store)
    backup = make_backup(path)
    lost = await accept_one(store)
    claims = await claim_all(store)
    history = store.history
    move_away(path)
    shutil.copyfile(backup, path)
    new = await accept_one(store)
    assert await ids_in(path) == {kept, new} == {one.id for one in await list_all(store)}
    assert store.history != history
    result = await store.settle([sent(claim, f"m-{claim.id}") for claim in claims])
    assert (result.applied, result.stale, result.missing) == ((), (kept,), (lost,))
    assert {claim.id for claim in await claim_all(store)} == {kept, new}


async def test_a_file_of_an_older_release_is_migrated_when_it_takes_the_place_of_another(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await accept_one(store)
    move_away(path)
    monkeypatch.setattr(migrations, "MIGRATIONS", MIGRATIONS[:-1])
    with closing(sqlite3.connect(path)) as older:
        migrations.migrate(older.cursor(), str(path), 0)
        older.commit()
    monkeypatch.undo()
    new = await accept_one(store)
    assert await ids_in(path) == {new}


async def test_a_new_file_with_the_log_of_the_old_one_is_not_opened(store: SqliteStore, path: Path) -> None:
    await accept_one(store)
    backup = make_backup(path)
    backup.replace(path)
    for _ in range(3):
        with pytest.raises(
            StoreUnavailable, match=r"homing\.db-wal still belongs to the file that was there"
        ):
            await store.accept([a_submission()])
    with pytest.raises(StoreUnavailable):
        await store.tallies(None)


@pytest.mark.parametrize("rows_since", [0, 3_000], ids=["just made", "older"])
async def test_nothing_is_accepted_into_a_file_that_a_backup_was_copied_over(
    store: SqliteStore, path: Path, rows_since: int
) -> None:
    await accept_one(store)
    backup = make_backup(path)
    await store.accept([a_submission(*(a_notification() for _ in range(rows_since)))])
    shutil.copyfile(backup, path)
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="was overwritten while it was in use"):
            await store.accept([a_submission()])
    with pytest.raises(StoreUnavailable, match="restore the backup again"):
        await store.tallies(None)


async def test_a_smaller_file_of_any_origin_that_was_copied_over_is_noticed(
    store: SqliteStore, path: Path
) -> None:
    await accept_one(store)
    with closing(sqlite3.connect(path)) as live, closing(sqlite3.connect(path.with_name("copy.db"))) as copy:
        live.backup(copy)
        await store.accept([a_submission(*(a_notification() for _ in range(1_000)))])
        live.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    await accept_one(store)
    shutil.copyfile(path.with_name("copy.db"), path)
    with pytest.raises(StoreUnavailable, match="was overwritten while it was in use"):
        await store.accept([a_submission()])


@pytest.mark.parametrize("rows_since", [0, 1_000])
async def test_a_compacted_copy_that_was_copied_over_is_noticed(
    store: SqliteStore, path: Path, rows_since: int
) -> None:
    """`VACUUM INTO` gives the copy a higher schema version, and keeps the mark."""
    await accept_one(store)
    copy = path.with_name("copy.db")
    with closing(sqlite3.connect(path)) as live:
        live.execute("VACUUM INTO ?", (str(copy),))
        await store.accept([a_submission(*(a_notification() for _ in range(rows_since)))])
        live.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    await accept_one(store)
    shutil.copyfile(copy, path)
    with pytest.raises(StoreUnavailable, match="was overwritten while it was in use"):
        await store.accept([a_submission()])


@pytest.mark.parametrize("mode", ["FULL", "INCREMENTAL"])
async def test_a_file_that_becomes_smaller_by_itself_is_no_damage(path: Path, mode: str) -> None:
    with closing(sqlite3.connect(path)) as mine:
        mine.execute(f"PRAGMA auto_vacuum = {mode}")
        mine.execute("CREATE TABLE app (x)")
        mine.executemany("INSERT INTO app VALUES (?)", [(b"x" * 4000,)] * 300)
        mine.commit()
    store = SqliteStore(path)
    await store.open()
    await store.migrate()
    with closing(sqlite3.connect(path)) as mine:
        mine.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    await accept_one(store)
    before = size_of(path)
    with closing(sqlite3.connect(path)) as mine:
        mine.execute("DELETE FROM app")
        mine.commit()
        mine.execute("PRAGMA incremental_vacuum").fetchall()
        mine.commit()
        mine.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert size_of(path) < before
    ids = {await accept_one(store) for _ in range(2)}
    await store.close()
    assert ids <= await ids_in(path)


async def test_a_deleted_log_is_noticed_and_its_contents_are_not_lost(store: SqliteStore, path: Path) -> None:
    before = await accept_one(store)
    path.with_name("homing.db-wal").unlink()
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=r"homing\.db-wal was deleted"):
            await store.accept([a_submission()])
    await store.close()
    assert before in await ids_in(path)


async def test_checkpoints_and_a_vacuum_of_another_connection_are_no_damage(
    store: SqliteStore, path: Path
) -> None:
    for _ in range(3):
        await store.accept([a_submission(*(a_notification() for _ in range(1_000)))])
        with closing(sqlite3.connect(path)) as other:
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        await accept_one(store)
        with closing(sqlite3.connect(path)) as other:
            other.execute("DELETE FROM homing_messages")
            other.execute("DELETE FROM homing_notifications")
            other.commit()
            other.execute("VACUUM")
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        await accept_one(store)
        await store.tallies(None)


async def test_an_application_keeps_its_own_number_in_the_header(path: Path) -> None:
    with closing(sqlite3.connect(path)) as mine:
        mine.execute("PRAGMA application_id = 77")
        mine.commit()
    store = SqliteStore(path)
    await store.open()
    await store.migrate()
    await accept_one(store)
    backup = make_backup(path)
    await store.close()
    for file in (path, backup):
        with closing(sqlite3.connect(file)) as mine:
            assert mine.execute("PRAGMA application_id").fetchone() == (77,)


async def test_a_process_that_accepts_notices_that_rows_are_gone(store: SqliteStore, path: Path) -> None:
    before = Snapshot(path)
    await accept_one(store)
    history = store.history
    await accept_one(store)
    assert store.history == history
    before.restore()
    await accept_one(store)
    assert store.history != history


async def test_a_result_of_a_notification_that_is_gone_is_a_sign_too(store: SqliteStore, path: Path) -> None:
    before = Snapshot(path)
    lost = await accept_and_claim(store)
    before.restore()
    history = store.history
    assert (await store.settle([sent(lost)])).missing == (lost.id,)
    assert store.history != history


# Processes ------------------------------------------------------------------------------------------


SENDER = """
import sys
from homing import Homing
from homing.core.errors import HomingError

async def main():
    received = []

    def deliver(delivery):
        received.append(delivery.notification_id)

    async with Homing(sys.argv[1], providers={"mail": deliver}) as homing:
        print("ready", flush=True)
        for line in sys.stdin:
            try:
                match line.strip():
                    case "send":
                        sent = await homing.send("ann@example.org", channel="email", body="Hello")
                        print(sent.notification_ids[0], flush=True)
                    case "process":
                        received.clear()
                        await homing.process(100)
                        print(" ".join(received), flush=True)
            except HomingError as error:
                print(f"{error.code}: {error}", flush=True)
"""


class SenderProcess:
    """A real process that sends or processes notifications whenever the test asks for it."""

    def __init__(self, loop_kind: LoopKind, path: Path) -> None:
        self.log = path.with_name("sender.log")
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", loop_kind.program(SENDER), str(path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._read() == "ready"

    def do(self, what: str) -> str:
        """Returns the id of what was sent, the ids that the provider got, or an error."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        return self._read()

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@pytest.fixture
def senders(path: Path, loop_kind: LoopKind) -> Iterator[tuple[SenderProcess, SenderProcess]]:
    both = SenderProcess(loop_kind, path), SenderProcess(loop_kind, path)
    yield both
    for sender in both:
        sender.stop()


def rows_in(path: Path) -> dict[str, str]:
    """Returns the status of each notification in a file, by id."""
    with closing(sqlite3.connect(path)) as file:
        return dict(file.execute("SELECT id, status FROM homing_notifications"))


def test_two_processes_go_on_with_a_file_that_was_restored_and_report_what_is_lost(
    senders: tuple[SenderProcess, SenderProcess], path: Path
) -> None:
    one, other = senders
    kept = one.do("send")
    backup = make_backup(path)
    lost = [one.do("send"), other.do("send")]
    move_away(path)
    shutil.copyfile(backup, path)
    new = [one.do("send"), other.do("send"), one.do("send")]
    assert rows_in(path).keys() == {kept, *new}
    assert set(one.do("process").split()) == {kept, *new}
    assert set(rows_in(path).values()) == {"sent"}
    reports: list[str] = []
    for _ in range(100):  # a report is made beside the calls
        other.do("process")
        reports = [line for line in one.log.read_text().splitlines() if line.startswith("the store has lost")]
        if len(reports) == len(lost):
            break
        time.sleep(0.05)
    assert len(reports) == 2
    assert all("has lost a notification that this process acknowledged" in line for line in reports)


def test_two_processes_refuse_a_file_that_is_gone_or_damaged(
    senders: tuple[SenderProcess, SenderProcess], path: Path
) -> None:
    one, other = senders
    before = one.do("send")
    backup = make_backup(path)
    one.do("send")
    path.rename(path.with_name("away.db"))
    for sender in senders:
        assert sender.do("send").startswith("STORE_UNAVAILABLE"), "deleted"
    path.with_name("away.db").rename(path)
    assert before in rows_in(path)
    assert other.do("send") in rows_in(path), "put back"
    shutil.copyfile(backup, path)
    for sender in senders:
        assert "was overwritten while it was in use" in sender.do("send")
        assert "was overwritten while it was in use" in sender.do("process")
