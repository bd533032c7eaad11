"""A process that suspends itself inside its transactions, like a machine that is frozen at that moment."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from typing import Any, Self

import msgspec

from support.event_loops import LoopKind

_PROGRAM = """
import asyncio, ctypes, json, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a suspended process must not outlive its test
from homing.stores.postgres import PostgresStore
from homing.stores.postgres.connection import Database
from homing.stores.postgres.transaction_limits import TransactionLimits
from homing.testing.builders import *

async def main():
    store = PostgresStore(sys.argv[1])
    limits = TransactionLimits(silence_ms=int(sys.argv[2]), lock_ms=60_000, total_ms=0)
    store._database.limits = limits
    await store.open()
    waiting = await calls(store)
    run, inside, woken = Database.do, 0, asyncio.Event()

    async def do(self, action, **options):
        async def act(tx):
            nonlocal inside
            result = await action(tx)
            if not woken.is_set():
                inside += 1
                await woken.wait()
            return result
        return await run(self, act, **options)

    Database.do = do
    tasks = [asyncio.create_task(call) for call in waiting]
    while inside < len(tasks):
        await asyncio.sleep(0.01)
        for task in tasks:
            assert not task.done(), task.result()
    os.kill(os.getpid(), signal.SIGSTOP)
    woken.set()
    print(json.dumps(await asyncio.gather(*tasks)), flush=True)
    await store.close()
"""


class SuspendedProcess:
    """A process that has made some calls to a store and was suspended before it could commit them.

    `calls` is the source of a coroutine function `calls(store)` that returns a list of coroutines, each a
    call whose result can be written as JSON. Each one has a transaction of its own. The server waits for
    `silence_ms` before it ends these transactions.
    """

    def __init__(self, url: str, calls: str, *, silence_ms: int, loop_kind: LoopKind) -> None:
        program = loop_kind.program(_PROGRAM + calls)
        self._process = subprocess.Popen(
            [sys.executable, "-c", program, url, str(silence_ms)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    async def __aenter__(self) -> Self:
        _, status = await asyncio.to_thread(os.waitpid, self._process.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            raise AssertionError(self._process.communicate()[1].decode())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._process.kill()
        await asyncio.to_thread(self._process.communicate)

    async def resume(self) -> list[Any]:
        """Wakes the process and returns the results of its calls. Raises if the process failed."""
        self._process.send_signal(signal.SIGCONT)
        out, err = await asyncio.to_thread(self._process.communicate, timeout=60)
        assert self._process.returncode == 0, err.decode()
        results: list[Any] = msgspec.json.decode(out)
        return results
