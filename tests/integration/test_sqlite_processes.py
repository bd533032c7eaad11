"""Several processes on one file, and processes that die."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from homing.core.notifications import Status
from homing.stores.sqlite import SqliteStore
from homing.testing.builders import a_notification, a_submission
from homing.testing.store_suite.harness import claim_all, count_by_status, list_all
from support.event_loops import LoopKind

CLAIMER = """
import asyncio, sys
from homing.stores.sqlite import SqliteStore
from homing.testing.builders import a_claim_request, sent

async def main():
    store = SqliteStore(sys.argv[1], busy_timeout_ms=60_000)
    await store.open()
    print("ready", flush=True)
    sys.stdin.readline()
    first = True
    while True:
        claims = (await store.claim(a_claim_request(worker=sys.argv[2], slots=7))).claims
        if not claims:
            break
        print(" ".join(claim.id for claim in claims), flush=True)
        if first:
            sys.stdin.readline()  # until each of the others has its first rows too
            first = False
        result = await store.settle([sent(claim) for claim in claims])
        assert len(result.applied) == len(claims), result
    await store.close()
"""

ACCEPTER = """
import asyncio, sys
from homing.core.ids import uuid7
from homing.stores.sqlite import SqliteStore
from homing.testing.builders import a_notification, a_submission
import random, time

async def caller(store):
    while True:
        id = uuid7(time.time_ns() // 1_000_000, random.getrandbits(74))
        [answer] = await store.accept([a_submission(a_notification(id=id))])
        sys.stdout.write(answer.ids[0] + "\\n")
        sys.stdout.flush()

async def main():
    store = SqliteStore(sys.argv[1])
    await store.open()
    await asyncio.gather(*(caller(store) for _ in range(16)))
"""

CARELESS = """
import asyncio, sys
from homing.stores.sqlite import SqliteStore
from homing.testing.builders import a_submission

async def main():
    store = SqliteStore(sys.argv[1])
    await store.open()
    await store.accept([a_submission()])
    if sys.argv[2] == "raise":
        raise RuntimeError("something else went wrong")
"""


def started(loop_kind: LoopKind, source: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", loop_kind.program(source), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    path = tmp_path / "homing.db"
    store = SqliteStore(path)
    await store.open()
    await store.migrate()
    await store.close()
    return path


def _go(worker: subprocess.Popen[str]) -> None:
    assert worker.stdin is not None
    worker.stdin.write("go\n")
    worker.stdin.flush()


async def test_concurrently_claiming_processes_get_different_rows(path: Path, loop_kind: LoopKind) -> None:
    store = SqliteStore(path)
    await store.open()
    answers = await store.accept([a_submission(*(a_notification() for _ in range(300)))])
    workers = [started(loop_kind, CLAIMER, str(path), f"w-{number}") for number in range(4)]
    for worker in workers:
        assert worker.stdout is not None
        assert await asyncio.to_thread(worker.stdout.readline) == "ready\n"
    for worker in workers:
        _go(worker)
    firsts = [await asyncio.to_thread(worker.stdout.readline) for worker in workers if worker.stdout]
    assert [len(line.split()) for line in firsts] == [7] * 4
    for worker in workers:
        _go(worker)
    outputs = [await asyncio.to_thread(worker.communicate) for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * 4, outputs
    claimed = [id for out in (*firsts, *(out for out, _ in outputs)) for id in out.split()]
    assert sorted(claimed) == sorted(answers[0].ids)
    assert await count_by_status(store) == {Status.SENT: 300}
    await store.close()


async def test_a_process_killed_while_it_writes_loses_nothing_acknowledged(
    path: Path, loop_kind: LoopKind
) -> None:
    rng = random.Random(11)
    answered: set[str] = set()
    for _ in range(3):
        process = started(loop_kind, ACCEPTER, str(path))
        assert process.stdout is not None
        for _ in range(rng.randrange(11, 200)):
            answered.add((await asyncio.to_thread(process.stdout.readline)).strip())
        process.kill()
        out = await asyncio.to_thread(process.stdout.read)  # with what `readline` has buffered
        await asyncio.to_thread(process.communicate)
        lines = out.split("\n")
        answered.update(lines[:-1])  # the text after the last line break is incomplete
    store = SqliteStore(path)
    await store.open()
    stored = {notification.id for notification in await list_all(store)}
    assert len(answered) > 30
    assert answered <= stored
    assert await count_by_status(store) == {Status.PENDING: len(stored)}
    await store.close()
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


@pytest.mark.parametrize(("how", "code"), [("return", 0), ("raise", 1)])
async def test_a_program_that_forgets_to_close_the_store_ends_anyway(
    path: Path, how: str, code: int, loop_kind: LoopKind
) -> None:
    process = started(loop_kind, CARELESS, str(path), how)
    _, errors = await asyncio.to_thread(process.communicate, None, 120)
    assert process.returncode == code, errors
    store = SqliteStore(path)
    await store.open()
    assert await count_by_status(store) == {Status.PENDING: 1}
    await store.close()


def test_a_store_can_be_used_by_one_event_loop_after_another(path: Path, loop_kind: LoopKind) -> None:
    store = SqliteStore(path)
    loop_kind.run(store.open())
    loop_kind.run(_accept(store))
    loop_kind.run(_accept(store))
    assert loop_kind.run(count_by_status(store)) == {Status.PENDING: 2}
    loop_kind.run(store.close())


async def _accept(store: SqliteStore) -> None:
    await store.accept([a_submission()])


async def test_a_message_comes_back_byte_for_byte(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    texts = ["", "\x00 nul", "🦊 fuchs", '"quoted" \\ and \u2028', "a" * 100_000, "[1,2", "null", "true", "1"]
    news = [a_notification(address=text, type=text or "none") for text in texts]
    await store.accept([a_submission(*news)])
    found = {n.id: n for n in await list_all(store)}
    for new in news:
        assert found[new.id].type == new.type
        assert msgspec.json.encode(found[new.id].content) == msgspec.json.encode(new.message.content)
    claims = {claim.id: claim for claim in await claim_all(store)}
    assert [claims[new.id].address for new in news] == texts
    await store.close()
