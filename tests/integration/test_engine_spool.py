"""While the store is unavailable, requests wait in a local file. Each is handed over exactly once."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from homing import (
    ConfigError,
    Delivery,
    Homing,
    HomingError,
    IdempotencyConflict,
    InvalidRequest,
    Rejection,
    SendResult,
    Status,
    StoreUnavailable,
)
from homing.core.errors import TemplateNotFound
from homing.core.lifecycle.claims import Acceptance, Submission
from homing.core.notifications import Channel, Content
from homing.core.ports.plug_ins import Rendered
from homing.core.ports.stores import Entry
from homing.engine.intake.spool import Spool
from homing.stores.sqlite import SqliteStore
from homing.testing.builders import a_submission

ADA = "ada@example.org"


class UnreliableStore(SqliteStore):
    """A store in memory that can be unavailable, or fail right after it has stored something."""

    def __init__(self) -> None:
        super().__init__(":memory:")
        self.away = self.registry_away = False
        self.cut_off_after = -1
        self.before: Callable[[], Awaitable[None]] | None = None
        self.accepted = 0

    async def accept(self, batch: Sequence[Submission], *, tx: Any = None) -> tuple[Acceptance, ...]:
        if self.away:
            raise StoreUnavailable
        if self.before is not None:
            await self.before()
        answers = await super().accept(batch, tx=tx)
        self.accepted += 1
        if self.cut_off_after == self.accepted:
            raise StoreUnavailable
        return answers

    async def get_many(self, tenant: str, kind: str, keys: Collection[str]) -> dict[str, Entry]:
        if self.registry_away:
            raise StoreUnavailable
        return await super().get_many(tenant, kind, keys)

    async def count(self) -> int:
        return sum(tally.count for tally in await self.tallies(None))


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "spool.jsonl"


@pytest.fixture
def store() -> UnreliableStore:
    return UnreliableStore()


@pytest.fixture
async def engine(store: UnreliableStore, file: Path) -> AsyncIterator[Homing]:
    async with Homing(store, providers={"mail": took}, spool=str(file)) as opened:
        yield opened


def content(file: Path) -> bytes:
    """Returns the file's contents, or an empty text if it does not exist."""
    return file.read_bytes() if file.exists() else b""


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def inode(path: Path) -> int:
    return path.stat().st_ino


def rewrite(file: Path, data: bytes) -> None:
    file.write_bytes(data)


def took(delivery: Delivery) -> None:
    """Accepts everything."""


async def spooled(engine: Homing, store: UnreliableStore, **fields: Any) -> Any:
    """Sends while the store is unavailable."""
    store.away = True
    to = fields.pop("to", ADA)
    try:
        return await engine.send(to, **{"channel": "email", "body": "x", "if_unavailable": "spool", **fields})
    finally:
        store.away = False


# Sending -----------------------------------------------------------------------------------------------


async def test_by_default_a_send_raises(engine: Homing, store: UnreliableStore, file: Path) -> None:
    store.away = True
    with pytest.raises(StoreUnavailable):
        await engine.send(ADA, channel="email", body="x")
    assert content(file) == b""


async def test_with_spooling_the_request_is_kept_and_delivered_later(
    engine: Homing, store: UnreliableStore
) -> None:
    sent = await spooled(engine, store, metadata={"entry_id": 7}, send_at=timedelta(0))
    assert sent.status == "spooled"
    assert await store.count() == 0
    assert (await engine.process()).succeeded == 1
    done = await engine.get(sent.id)
    assert (done.status, done.batch_id, done.metadata) == (Status.SENT, sent.batch_id, {"entry_id": 7})


async def test_only_the_owner_may_read_the_spool(engine: Homing, store: UnreliableStore, file: Path) -> None:
    await spooled(engine, store)

    assert {mode_of(one) for one in file.parent.glob("spool*")} == {0o600}
    with file.open("ab") as spool:
        spool.write(b"unreadable\n")
    await engine.process()
    found = {one.name: mode_of(one) for one in file.parent.glob("spool*")}
    endings = ("", ".lock", ".draining", ".refused")
    assert found == dict.fromkeys([f"spool.jsonl{ending}" for ending in endings], 0o600)


async def test_a_store_that_hangs_counts_as_unavailable_and_the_request_is_stored_once(
    store: UnreliableStore, file: Path
) -> None:
    """The call that hung goes on when the store answers again, unless its caller has left before."""
    answers = asyncio.Event()
    async with Homing(store, providers={"mail": took}, spool=str(file), store_timeout_ms=50) as engine:
        store.before = answers.wait  # type: ignore[assignment]
        with pytest.raises(StoreUnavailable, match="store_timeout_ms"):
            await engine.send(ADA, channel="email", body="x")
        sent = await engine.send(ADA, channel="email", body="x", if_unavailable="spool")
        assert sent.status == "spooled"
        answers.set()
        assert (await engine.process()).succeeded == 1
        assert (await engine.get(sent.id)).status is Status.SENT


async def test_a_recipient_that_cannot_be_looked_up_in_time_is_spooled_with_its_given_address(
    store: UnreliableStore, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(*_: Any, **__: Any) -> dict[str, Entry]:
        await asyncio.Event().wait()
        return {}

    recipient = {"id": "ada", "email": ADA}
    async with Homing(store, providers={"mail": took}, spool=str(file), store_timeout_ms=50) as engine:
        monkeypatch.setattr(store, "get_many", hang)
        monkeypatch.setattr(store, "accept", hang)
        sent = await engine.send(recipient, channel="email", body="x", if_unavailable="spool")
        assert sent.status == "spooled"


async def test_a_spooled_request_is_on_the_disk_before_it_is_confirmed(
    engine: Homing, store: UnreliableStore, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut the file has what was synced, and the folder has the file if it was synced too."""
    synced: dict[int, int] = {}
    real = os.fsync

    def fsync(descriptor: int) -> None:
        real(descriptor)
        found = os.fstat(descriptor)
        synced[found.st_ino] = found.st_size

    monkeypatch.setattr(os, "fsync", fsync)
    await spooled(engine, store)
    assert synced[inode(file)] == len(content(file)) > 0
    assert inode(file.parent) in synced
    await spooled(engine, store)
    assert synced[inode(file)] == len(content(file))


async def test_with_an_available_store_nothing_is_spooled(engine: Homing, file: Path) -> None:
    sent = await engine.send(ADA, channel="email", body="x", if_unavailable="spool")
    assert sent.status == "queued"
    assert content(file) == b""


class RemovableTemplate:
    """Renders any template as long as it exists."""

    exists = True

    async def render(
        self, tenant: str, template_key: str, channel: Channel, locale: str | None, data: Mapping[str, Any]
    ) -> Rendered:
        if not self.exists:
            raise TemplateNotFound("templateKey", f"{template_key!r} does not exist")
        return Rendered(content=Content(body="Hello"), locale="en", version="1")


async def test_a_repeat_that_is_no_longer_valid_gets_the_answer_of_the_spooled_request(
    store: UnreliableStore, file: Path
) -> None:
    templates = RemovableTemplate()
    fields = {"body": None, "template_key": "greeting", "idempotency_key": "k"}
    async with Homing(store, providers={"mail": took}, spool=str(file), renderer=templates) as engine:
        first = await spooled(engine, store, **fields)
        templates.exists = False
        again = await spooled(engine, store, **fields)
        with pytest.raises(IdempotencyConflict):
            await spooled(engine, store, **fields, type="other")
    assert first.status == again.status == "spooled"
    assert (again.batch_id, again.notification_ids) == (first.batch_id, first.notification_ids)


async def test_without_a_spool_file_the_error_says_what_to_set(store: UnreliableStore) -> None:
    async with Homing(store, providers={"mail": took}) as engine:
        store.away = True
        with pytest.raises(StoreUnavailable, match="no spool file is configured"):
            await engine.send(ADA, channel="email", body="x", if_unavailable="spool")


async def test_an_invalid_request_is_not_spooled(engine: Homing, store: UnreliableStore, file: Path) -> None:
    store.away = True
    with pytest.raises(HomingError, match="channel"):
        await engine.send(ADA, channel="fax", body="x", if_unavailable="spool")
    assert content(file) == b""


async def test_a_spooled_request_cannot_join_a_transaction(engine: Homing, store: UnreliableStore) -> None:
    with pytest.raises(InvalidRequest, match="connection"):
        await spooled(engine, store, connection=object())


async def test_without_the_store_the_request_itself_must_contain_the_address(
    engine: Homing, store: UnreliableStore
) -> None:
    store.registry_away = True
    sent = await spooled(engine, store, to={"id": "u-1", "email": ADA})
    with pytest.raises(InvalidRequest, match="'u-1' has no email"):
        await spooled(engine, store, to={"id": "u-1"})
    store.registry_away = False
    await engine.process()
    assert (await engine.get(sent.id)).recipient.id == "u-1"


async def test_a_missing_folder_is_named(store: UnreliableStore, tmp_path: Path) -> None:
    async def send() -> None:
        missing = str(tmp_path / "missing" / "spool.jsonl")
        async with Homing(store, providers={"mail": took}, spool=missing) as engine:
            store.away = True
            await engine.send(ADA, channel="email", body="x", if_unavailable="spool")

    with pytest.raises((ConfigError, StoreUnavailable), match="missing"):
        await send()


async def test_a_repeat_with_the_same_key_is_the_same_request(engine: Homing, store: UnreliableStore) -> None:
    first = await spooled(engine, store, idempotency_key="k")
    again = await spooled(engine, store, idempotency_key="k")
    await engine.process()
    assert await store.count() == 1
    assert again.notification_ids == first.notification_ids


@pytest.mark.parametrize("way", ["send", "send_many"])
async def test_a_repeat_gets_the_ids_of_the_spooled_request_although_the_store_is_back(
    engine: Homing, store: UnreliableStore, way: str
) -> None:
    fields: dict[str, Any] = {"channel": "email", "body": "Hi", "idempotency_key": "k"}
    store.away = True
    first = await engine.send(ADA, if_unavailable="spool", **fields)
    store.away = False
    if way == "send":
        again: SendResult | Rejection = await engine.send(ADA, **fields)
        with pytest.raises(IdempotencyConflict):
            await engine.send(ADA, **{**fields, "body": "Bye"})
    else:
        request = {"recipient": ADA, "channel": "email", "content": {"body": "Hi"}, "idempotency_key": "k"}
        (again,) = [one async for one in engine.send_many([request])]
    assert isinstance(again, SendResult)
    assert (again.batch_id, again.notification_ids) == (first.batch_id, first.notification_ids)
    await engine.process()
    assert (await engine.get(first.id)).status is Status.SENT
    assert await store.count() == 1


@pytest.mark.parametrize("worker", [False, True])
async def test_spooled_requests_are_handed_over_as_soon_as_the_store_is_back(
    store: UnreliableStore, file: Path, worker: bool
) -> None:
    async with Homing(store, providers={"mail": took}, spool=str(file), worker=worker) as engine:
        lost = await spooled(engine, store)
        await engine.send(ADA, channel="email", body="the store is back")
        async with asyncio.timeout(60):
            while await store.count() != 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        found = await engine.wait(lost.id, timeout_ms=60_000 if worker else 0)
        assert found.status is (Status.SENT if worker else Status.PENDING)


async def test_requests_spooled_by_an_earlier_process_are_handed_over_by_the_next(
    store: UnreliableStore, file: Path
) -> None:
    async with Homing(store, providers={"mail": took}, spool=str(file)) as engine:
        sent = await spooled(engine, store)
    async with Homing(store, providers={"mail": took}, spool=str(file)) as engine:
        await engine.process()
        assert (await engine.get(sent.id)).status is Status.SENT


async def test_a_request_that_expired_in_the_spool_is_not_sent(
    engine: Homing, store: UnreliableStore
) -> None:
    sent = await spooled(engine, store, expires_at=timedelta(milliseconds=30))
    await asyncio.sleep(0.05)
    assert (await engine.process()).succeeded == 0
    assert (await engine.get(sent.id)).status is Status.EXPIRED


# Hand-over ---------------------------------------------------------------------------------------------


async def filled(file: Path, number: int) -> Spool:
    spool = Spool(file)
    for _ in range(number):
        await spool.write(a_submission())
    return spool


async def test_everything_is_handed_over_once_and_then_removed(store: UnreliableStore, file: Path) -> None:
    spool = await filled(file, 7)
    assert spool.waiting() == 7
    assert [await spool.drain(store) for _ in range(3)] == [7, 0, 0]
    assert (await store.count(), spool.waiting()) == (7, 0)


async def test_a_spool_that_was_never_used_is_empty(store: UnreliableStore, file: Path) -> None:
    spool = Spool(file)
    assert (spool.waiting(), await spool.drain(store)) == (0, 0)


async def test_an_interrupted_hand_over_is_repeated_without_duplicates(
    store: UnreliableStore, file: Path
) -> None:
    spool = await filled(file, 5)
    store.cut_off_after = 1
    with pytest.raises(StoreUnavailable):
        await spool.drain(store)
    assert (await store.count(), spool.waiting()) == (5, 5)
    assert await spool.drain(store) == 5
    assert (await store.count(), spool.waiting()) == (5, 0)


async def test_several_chunks_are_handed_over_in_order(store: UnreliableStore, file: Path) -> None:
    spool = await filled(file, 1)
    lines = [msgspec.json.encode(a_submission(key=f"k-{n}")) + b"\n" for n in range(1100)]
    rewrite(file, content(file) + b"".join(lines))
    store.cut_off_after = 2
    with pytest.raises(StoreUnavailable):
        await spool.drain(store)
    assert await spool.drain(store) == 1101
    assert await store.count() == 1101


async def test_a_line_truncated_by_a_crash_was_never_acknowledged(store: UnreliableStore, file: Path) -> None:
    spool = await filled(file, 2)
    whole = content(file)
    rewrite(file, whole + whole[:100])
    assert spool.waiting() == 2
    await spool.write(a_submission())
    assert spool.waiting() == 3
    assert await spool.drain(store) == 3
    assert await store.count() == 3


async def test_a_truncated_line_alone_is_not_handed_over(store: UnreliableStore, file: Path) -> None:
    spool = await filled(file, 1)
    rewrite(file, content(file)[:50])
    assert await spool.drain(store) == 0
    await spool.write(a_submission())
    assert await spool.drain(store) == 1


async def test_two_concurrent_hand_overs_hand_over_once(store: UnreliableStore, file: Path) -> None:
    await filled(file, 20)

    async def slow() -> None:
        await asyncio.sleep(0.05)

    store.before = slow
    taken = await asyncio.gather(*(Spool(file).drain(store) for _ in range(4)))
    assert sorted(taken) == [0, 0, 0, 20]
    assert (await store.count(), store.accepted) == (20, 1)


async def test_a_run_waits_for_the_hand_over_that_this_process_has_begun(
    engine: Homing, store: UnreliableStore
) -> None:
    """Otherwise a run right after an outage delivers nothing of what was spooled."""
    began, release = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        began.set()
        await release.wait()

    store.before = hold
    answer = await spooled(engine, store)
    async with asyncio.timeout(60):
        await began.wait()
    run = asyncio.create_task(engine.process())
    await asyncio.sleep(0.05)
    release.set()
    assert (await run).processed == 1
    assert (await engine.get(answer.id)).status is Status.SENT


async def test_requests_spooled_during_the_hand_over_stay_for_the_next(
    store: UnreliableStore, file: Path
) -> None:
    spool = await filled(file, 3)
    late = a_submission()

    async def meanwhile() -> None:
        store.before = None
        await spool.write(late)

    store.before = meanwhile
    assert await spool.drain(store) == 3
    assert spool.waiting() == 1
    assert await spool.drain(store) == 1
    assert await store.get("default", late.notifications[0].id) is not None


async def test_a_hand_over_that_was_cancelled_at_its_end_removes_no_request_that_came_later(
    store: UnreliableStore, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that removes the lines goes on, so that the next hand-over may have read them before."""
    spool, late = await filled(file, 2), a_submission()
    rewrite(file, content(file) + b"unreadable\n")
    began, release, fsync = threading.Event(), threading.Event(), os.fsync

    def hold(number: int) -> None:
        monkeypatch.setattr(os, "fsync", fsync)
        began.set()
        release.wait(60)

    monkeypatch.setattr(os, "fsync", hold)
    cancelled = asyncio.create_task(spool.drain(store))
    await asyncio.to_thread(began.wait, 60)
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)

    async def meanwhile() -> None:
        store.before = None
        release.set()
        async with asyncio.timeout(60):
            while spool.waiting():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await spool.write(late)

    store.before = meanwhile
    await Spool(file).drain(store)
    assert await Spool(file).drain(store) == 1
    assert await store.get("default", late.notifications[0].id) is not None
    assert await store.count() == 3


async def test_a_key_used_with_another_body_meanwhile_is_set_aside(
    store: UnreliableStore, file: Path
) -> None:
    await store.accept([a_submission(key="k", fingerprint="one")])
    spool = Spool(file)
    await spool.write(a_submission(key="k", fingerprint="two"))
    await spool.write(a_submission())
    assert await spool.drain(store) == 2
    assert await store.count() == 2
    refused = content(file.with_name(file.name + ".refused"))
    assert refused.count(b"\n") == 1
    assert b'"two"' in refused
    assert spool.waiting() == 0


async def test_an_unreadable_line_is_set_aside_and_delays_no_other(
    store: UnreliableStore, file: Path
) -> None:
    spool = await filled(file, 2)
    first, second, _ = content(file).split(b"\n")
    rewrite(file, b"\n".join((first, b'{"tenant": 5, "oops"', second, b"")))
    await spool.drain(store)
    assert await store.count() == 2
    assert spool.waiting() == 0
    assert b"oops" in content(file.with_name(file.name + ".refused"))


async def test_what_is_set_aside_is_written_once_however_often_the_hand_over_is_interrupted(
    store: UnreliableStore, file: Path
) -> None:
    await store.accept([a_submission(key="k", fingerprint="one")])
    spool = await filled(file, 1)
    await spool.write(a_submission(key="k", fingerprint="two"))
    others = b"".join(msgspec.json.encode(a_submission(key=f"k-{n}")) + b"\n" for n in range(600))
    rewrite(file, b'{"tenant": 5, "oops"\n' + content(file) + others)
    for chunks in (0, 1, 1):
        store.away, store.cut_off_after = chunks == 0, store.accepted + 2
        with pytest.raises(StoreUnavailable):
            await spool.drain(store)
    store.away, store.cut_off_after = False, -1
    await spool.drain(store)
    refused = content(file.with_name(file.name + ".refused"))
    assert (refused.count(b"\n"), refused.count(b"oops"), refused.count(b'"two"')) == (2, 1, 1)
    assert spool.waiting() == 0


async def test_an_unreadable_spool_does_not_stop_processing(
    engine: Homing, store: UnreliableStore, file: Path
) -> None:
    sent = await engine.send(ADA, channel="email", body="x")
    rewrite(file, b"\xff\xfe not ours\n")
    assert (await engine.process()).succeeded == 1
    assert (await engine.get(sent.id)).status is Status.SENT


async def test_a_store_that_is_still_unavailable_does_not_stop_processing(
    engine: Homing, store: UnreliableStore, file: Path
) -> None:
    sent = await engine.send(ADA, channel="email", body="x")
    await spooled(engine, store)
    store.away = True
    assert (await engine.process()).succeeded == 1
    assert (await engine.get(sent.id)).status is Status.SENT


async def test_a_spool_that_cannot_be_written_raises_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    spool = Spool(folder / "spool.jsonl")
    folder.rmdir()
    with pytest.raises(StoreUnavailable, match=r"spool\.jsonl cannot be written: No such file"):
        await spool.write(a_submission())


async def test_a_spooled_key_with_another_body_is_a_conflict(engine: Homing, store: UnreliableStore) -> None:
    await spooled(engine, store, idempotency_key="k")
    with pytest.raises(IdempotencyConflict):
        await spooled(engine, store, idempotency_key="k", body="another")


async def test_an_unreadable_line_does_not_block_writers(store: UnreliableStore, file: Path) -> None:
    rewrite(file, b"not ours\n")
    spool = await filled(file, 2)
    assert await spool.drain(store) == 2


async def test_many_concurrent_writers_lose_nothing(store: UnreliableStore, file: Path) -> None:
    spools = [Spool(file) for _ in range(4)]
    await asyncio.gather(*(spools[n % 4].write(a_submission()) for n in range(80)))
    assert await spools[0].drain(store) == 80
    assert await store.count() == 80


async def test_a_process_notices_that_another_one_has_emptied_and_refilled_the_file(file: Path) -> None:
    """The new file is longer than what this process has read of the old one, so only the file differs."""
    here, there, store = Spool(file), Spool(file), UnreliableStore()
    await store.open()
    await store.migrate()
    await here.write(a_submission())
    assert await there.drain(store) == 1
    for _ in range(3):
        await there.write(a_submission())
    await here.write(a_submission())
    assert await there.drain(store) == 4
    assert await store.count() == 5
    await store.close()


async def test_a_process_writes_a_request_again_that_another_one_has_taken_from_the_file(file: Path) -> None:
    here, there, store = Spool(file), Spool(file), UnreliableStore()
    await store.open()
    await store.migrate()
    first = a_submission(key="k")
    await here.write(first)
    await there.drain(store)
    for _ in range(3):
        await there.write(a_submission())
    await here.write(first)
    assert await there.drain(store) == 4
    assert await store.count() == 4, "the store knows the key"
    await store.close()
