"""Worker processes that are killed and suspended, and the count of lost notifications afterwards."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import asyncpg
import msgspec

from homing import Homing, OutcomeKind, SendResult, Status
from homing.cli.common.exit_codes import ExitCode

CONFIG = """
store = "{store}"

[worker]
poll_ms = "{poll_ms}ms"
lease_ms = "{lease_ms}ms"

[slots]
standard = 16

[providers.outfile]
kind = "file"
path = "{folder}/sent.jsonl"
channels = ["email"]

[[rules]]
name = "quick"
max_attempts = 50
base_ms = "50ms"
cap_ms = "200ms"
timeout_ms = "400ms"
"""

# PR_SET_PDEATHSIG: a worker, which may be suspended, must not outlive the process that started it.
_WORKER = """
import ctypes, runpy, signal
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
runpy.run_module("homing.cli", run_name="__main__", alter_sys=True)
"""
WORKERS = 3
LEASE_MS = 1000
_RUNS_A_STATEMENT = """
SELECT 1 FROM pg_stat_activity
WHERE client_port = ANY($1) AND state = 'active' AND wait_event IS DISTINCT FROM 'ClientRead'
"""
_HOLDS_LOCKS = """
SELECT query FROM pg_stat_activity
WHERE client_port = ANY($1) AND wait_event = 'ClientRead' AND backend_xid IS NOT NULL
"""
ENDED = {Status.SENT.value, Status.FAILED.value}


class Fleet:
    """Some `homing worker` processes that share one store and deliver into one file of JSON lines."""

    def __init__(
        self,
        folder: Path,
        store: str,
        *,
        workers: int = WORKERS,
        lease_ms: int = LEASE_MS,
        poll_ms: int = 100,
        settings: str = "",
        command: Sequence[str] = ("worker",),
    ) -> None:
        """`settings` are more lines of the settings file. `command` is what the processes run."""
        own = CONFIG.format(folder=folder, store=store, lease_ms=lease_ms, poll_ms=poll_ms)
        self.config = folder / "homing.toml"
        self.config.write_text(f"{own}\n{settings}")
        self._command = command
        self._log = (folder / "workers.log").open("ab")
        self._size = workers
        self._workers: list[subprocess.Popen[bytes]] = []

    @property
    def workers(self) -> Sequence[subprocess.Popen[bytes]]:
        return self._workers

    def restart_ended(self) -> None:
        """Starts workers again whose start has failed because the store was unavailable."""
        for position, worker in enumerate(self._workers):
            if worker.poll() is not None:
                assert worker.returncode == ExitCode.STORE, f"a worker ended with {worker.returncode}"
                self._workers[position] = self._start()

    def start(self) -> None:
        self._workers = [self._start() for _ in range(self._size)]

    def kill_one(self, rng: random.Random) -> None:
        self.kill(rng.choice(self._workers))

    def kill(self, worker: subprocess.Popen[bytes]) -> None:
        """Kills a worker with `kill -9` and starts another one."""
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        self._workers[self._workers.index(worker)] = self._start()

    @contextmanager
    def suspended(self, rng: random.Random) -> Iterator[subprocess.Popen[bytes]]:
        """Suspends a process like a suspended machine, and resumes it after a while."""
        worker = rng.choice(self._workers)
        worker.send_signal(signal.SIGSTOP)
        try:
            yield worker
        finally:
            worker.send_signal(signal.SIGCONT)  # no effect on a process that was killed meanwhile

    def stop(self) -> None:
        for worker in self._workers:
            worker.terminate()
            worker.send_signal(signal.SIGCONT)
        for worker in self._workers:
            worker.wait(timeout=120)
        self._log.close()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", _WORKER, "--config", str(self.config), *self._command]
        return subprocess.Popen(command, stdout=self._log, stderr=self._log)


async def suspend_inside_transaction(
    worker: subprocess.Popen[bytes], connection: asyncpg.Connection[asyncpg.Record]
) -> str | None:
    """Suspends a process that is inside a transaction with locks, and returns its last statement.

    If the process is not inside one, lets it go on at once and returns None.
    """
    worker.send_signal(signal.SIGSTOP)
    ports = ports_of(worker.pid)
    while await connection.fetchval(_RUNS_A_STATEMENT, ports):
        pass
    found: str | None = await connection.fetchval(_HOLDS_LOCKS, ports)
    if found is None:
        worker.send_signal(signal.SIGCONT)
    return found


def ports_of(pid: int) -> list[int]:
    """Returns the local TCP ports of a process."""
    opened = {str(file.readlink()) for file in Path(f"/proc/{pid}/fd").iterdir()}
    ports = []
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if f"socket:[{fields[9]}]" in opened:
            ports.append(int(fields[1].rpartition(":")[2], 16))
    return ports


class DeliveryCount(msgspec.Struct, kw_only=True):
    """The accepted notifications, compared with the store and the provider's file."""

    accepted: int
    accounted: int
    sent: int
    lost: int
    sends: int
    repeated: int
    """Notifications that were sent more than once, each time in an attempt whose end is unknown."""
    repeated_by_outcome: dict[str, int] = {}
    """Sends of attempts whose end is unknown: `lost` with their worker, or `ambiguous` after a timeout."""
    oversent: int
    """Notifications whose sends their attempts do not explain. Must be 0."""
    unexplained: list[str] = []
    """What is wrong with the first of these."""

    @property
    def good(self) -> bool:
        return self.lost == 0 and self.oversent == 0 and self.accepted == self.accounted == self.sent


async def send_some(homing: Homing, count: int, accepted: list[str]) -> None:
    """Sends this many more, and keeps their ids as soon as they are accepted.

    Each request has an idempotency key, so that a request whose response was lost can be repeated.
    """
    first = len(accepted)
    requests = (
        {
            "recipient": f"user{number}@example.org",
            "channel": "email",
            "content": {"body": "hi"},
            "idempotency_key": f"request-{number}",
        }
        for number in range(first, first + count)
    )
    async for result in homing.send_many(requests):
        assert isinstance(result, SendResult), result
        accepted.append(result.id)


async def settled(homing: Homing, total: int, within_s: float = 600.0) -> bool:
    """Waits until all notifications have ended, at most `within_s`. Returns False if some have not."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        counts = await homing.queue_counts()
        if sum(n for status, n in counts.items() if status in ENDED) >= total:
            return True
        await asyncio.sleep(0.1)
    return False


_UNKNOWN_ENDS = (OutcomeKind.LOST, OutcomeKind.AMBIGUOUS)


def compare_sends(attempts: Mapping[int, OutcomeKind], sends: Mapping[int, int]) -> str:
    """Compares the attempts of one notification with what its provider took. Returns what is wrong, or "".

    Both are by the number of the attempt. An attempt is sent at most once, and exactly once if it was
    accepted. A further send needs an attempt whose end is unknown: the policy repeats those, as documented.
    """
    for number, times in sends.items():
        if number not in attempts:
            return f"attempt {number} was sent, and no such attempt is on record"
        if times > 1:
            return f"attempt {number} was sent {times} times"
        if attempts[number] not in (OutcomeKind.ACCEPTED, *_UNKNOWN_ENDS):
            return f"attempt {number} was sent, and its outcome is {attempts[number].value}"
    accepted = [number for number, outcome in attempts.items() if outcome is OutcomeKind.ACCEPTED]
    if len(accepted) > 1:
        return f"attempts {accepted} were all accepted"
    if any(not sends.get(number) for number in accepted):
        return f"attempt {accepted[0]} was accepted, and never sent"
    return ""


async def count(homing: Homing, folder: Path, accepted: list[str]) -> DeliveryCount:
    """Compares the accepted notifications with the store and the provider's file."""
    lines = (folder / "sent.jsonl").read_bytes().splitlines()
    sends: dict[str, Counter[int]] = {}
    for line in map(msgspec.json.decode, lines):
        sends.setdefault(line["notificationId"], Counter())[line["attempt"]] += 1
    counts = await homing.queue_counts()
    unexplained = [f"{id_}: sent, and never accepted" for id_ in sends.keys() - set(accepted)]
    by_outcome: Counter[str] = Counter()
    for id_ in accepted:
        own = sends.get(id_, Counter())
        attempts = {one.number: one.outcome for one in (await homing.history(id_)).attempts}
        if wrong := compare_sends(attempts, own):
            unexplained.append(f"{id_}: {wrong}")
        by_outcome.update(attempts[number].value for number in own if attempts.get(number) in _UNKNOWN_ENDS)
    return DeliveryCount(
        accepted=len(accepted),
        accounted=sum(counts.values()),
        sent=counts[Status.SENT.value],
        lost=sum(id_ not in sends for id_ in accepted),
        sends=len(lines),
        repeated=sum(own.total() > 1 for own in sends.values()),
        repeated_by_outcome=dict(by_outcome),
        oversent=len(unexplained),
        unexplained=unexplained[:20],
    )


def show(report: msgspec.Struct) -> None:
    """Prints the report line by line."""
    for name, value in msgspec.to_builtins(report).items():
        for inner, number in value.items() if isinstance(value, dict) else ((name, value),):
            print(f"{inner:>18}  {number}")
