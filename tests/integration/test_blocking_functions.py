"""Two processes whose provider is a plain function that blocks: each mail is sent once, and none is lost."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from homing import Homing, OutcomeKind, SendResult, Status

MAILS = 110

WORKER = """
import asyncio, os, sys, time
from homing import Homing

out = os.open(sys.argv[2], os.O_CREAT | os.O_APPEND | os.O_WRONLY)

def deliver(delivery):
    os.write(out, f"{delivery.notification_id} {delivery.attempt} {os.getpid()}\\n".encode())
    time.sleep(1)
    return "taken"

async def main():
    async with Homing(sys.argv[1], providers={"mail": deliver}, worker=True):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main())
"""


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "homing.db")
    url: str = request.getfixturevalue("postgres_url")
    return url


def _start(address: str, sent: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", WORKER, address, str(sent)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


async def test_two_processes_with_a_blocking_function_send_every_mail_once(
    address: str, tmp_path: Path
) -> None:
    async def refuse(delivery: object) -> None:
        raise AssertionError("this process only accepts")

    sent = tmp_path / "sent.txt"
    requests = (
        {"recipient": f"p{n}@example.org", "channel": "email", "content": {"body": "x"}} for n in range(MAILS)
    )
    async with Homing(address, providers={"mail": refuse}) as homing:
        ids = [one.id async for one in homing.send_many(requests) if isinstance(one, SendResult)]
        workers = [_start(address, sent) for _ in range(2)]
        try:
            for id in ids:
                await homing.wait(id, timeout_ms=120_000)
        finally:
            for worker in workers:
                await asyncio.to_thread(worker.communicate, b"\n", 60)
        histories = [await homing.history(id) for id in ids]
    lines = [line.split() for line in sent.read_text().splitlines()]
    assert Counter(id for id, _, _ in lines) == dict.fromkeys(ids, 1)
    assert {one.notification.status for one in histories} == {Status.SENT}
    assert [[a.outcome for a in one.attempts] for one in histories] == [[OutcomeKind.ACCEPTED]] * MAILS
    assert [worker.returncode for worker in workers] == [0, 0]
