"""A rolling deploy that adds and removes sinks while notifications pass through two processes."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from homing import SendResult, compose
from homing.core.lifecycle.events import STATUS_CHANGED, Event
from homing.core.ports.plug_ins import SubscribedSink
from homing.engine.engine import Engine
from homing.providers.local.scripted import ScriptedProvider
from homing.settings import load_settings

NOTIFICATIONS = 10_000

GENERATIONS: tuple[tuple[tuple[str, tuple[str, ...]], ...], ...] = (
    (("first", ("steady", "removed")), ("second", ("steady",))),
    (
        ("third", ("steady", "added", "removed")),
        ("fourth", ("steady", "added")),
    ),
)
"""Two generations of two processes each, with their sinks. A process of the second generation replaces one of
the first while the other one goes on."""


class FileSink:
    """Appends its events to a file that all processes share. One write per batch keeps them in order."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def open(self) -> None:
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def close(self) -> None:
        os.close(self._file)

    async def publish(self, events: Sequence[Event]) -> None:
        lines = [json.dumps([e.notification_id, e.payload["status"], e.at]) + "\n" for e in events]
        os.write(self._file, "".join(lines).encode())


async def run_process(store: str, folder: Path, name: str, sinks: Sequence[str], number: int) -> None:
    """Registers the sinks, accepts and delivers notifications, and runs until its standard input ends."""
    settings = load_settings(
        env={}, flags={"store": store, "worker_name": name, "sinks": {"log": {"events": []}}}
    )
    parts = compose.build_parts(
        settings,
        providers={"mail": ScriptedProvider()},
        sinks={
            sink: SubscribedSink(FileSink(folder / sink), frozenset({STATUS_CHANGED}), "file", durable=True)
            for sink in sinks
        },
    )
    async with Engine(parts, compose.build_engine_settings(settings)) as engine:
        say(f"opened {await parts.backend.now_ms()}")
        engine.start_worker()
        ids = []
        for start in range(0, number, 50):
            requests = [
                {"recipient": {"email": f"u{n}@example.org"}, "channels": ["email"], "content": {"body": "x"}}
                for n in range(start, min(start + 50, number))
            ]
            ids += [sent.id async for sent in engine.submit_many(requests) if isinstance(sent, SendResult)]
        say("accepted " + json.dumps(ids))
        await asyncio.to_thread(sys.stdin.read)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class Child:
    """A process of the deploy."""

    def __init__(self, store: str, folder: Path, name: str, sinks: Sequence[str], number: int) -> None:
        arguments = [store, str(folder), name, ",".join(sinks), str(number)]
        self._process = subprocess.Popen(
            [sys.executable, __file__, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.ids: list[str] = []

    def opened_at(self) -> int:
        """Waits until the sinks are registered, and returns the store's time."""
        return int(self._line("opened "))

    def wait_until_accepted(self) -> None:
        self.ids = json.loads(self._line("accepted "))

    def stop(self) -> None:
        self._process.communicate(timeout=120)
        assert self._process.returncode == 0

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _line(self, start: str) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith(start), line
        return line.removeprefix(start)


def published(path: Path) -> dict[str, list[tuple[str, int]]]:
    """Returns (status, time) of the events in a sink's file by notification, without repetitions."""
    found: dict[str, dict[tuple[str, int], None]] = {}
    for line in path.read_text().splitlines():
        id, status, at = json.loads(line)
        found.setdefault(id, {})[status, at] = None
    return {id: list(events) for id, events in found.items()}


async def until_published(store: str, sinks: Sequence[str], accepted: int) -> None:
    """Waits until every notification is sent and nothing waits for these sinks."""
    backend = compose.build_store(store)
    await backend.open()
    counts: Counter[str] = Counter()
    waiting = -1
    try:
        async with asyncio.timeout(240):
            while counts != {"sent": accepted} or waiting:
                await asyncio.sleep(0.1)
                counts.clear()
                for tally in await backend.tallies(None):
                    counts[tally.status.value] += tally.count
                waiting = sum(sink.waiting for sink in await backend.sinks() if sink.name in sinks)
    except TimeoutError:
        pytest.fail(f"{counts}, and {waiting} events wait")
    finally:
        await backend.close()


async def remove_sink(store: str, name: str) -> int:
    """Removes a sink and returns the store's time afterwards."""
    backend = compose.build_store(store)
    await backend.open()
    try:
        assert await backend.remove_sink(name) is not None
        return await backend.now_ms()
    finally:
        await backend.close()


def deploy(store: str, folder: Path) -> None:
    number = NOTIFICATIONS // 4
    old, new = GENERATIONS
    children: list[Child] = []
    try:
        running: list[Child] = []
        for name, first_sinks in old:  # the first process has registered its sinks before the second accepts
            running.append(Child(store, folder, name, first_sinks, number))
            children.append(running[-1])
            running[-1].opened_at()
        added_at = 0
        for place, (name, sinks) in enumerate(new):
            replacement = Child(store, folder, name, sinks, number)
            children.append(replacement)
            added_at = added_at or replacement.opened_at()
            running[place].wait_until_accepted()
            running[place].stop()
        removed_at = asyncio.run(remove_sink(store, "removed"))
        for place, child in enumerate(children[2:]):
            if place:
                child.opened_at()
            child.wait_until_accepted()
        ids = {id for child in children for id in child.ids}
        assert len(ids) == NOTIFICATIONS
        asyncio.run(until_published(store, ["steady", "added"], NOTIFICATIONS))
        for child in children[2:]:
            child.stop()
    finally:
        for child in children:
            child.kill()
    everything, added = published(folder / "steady"), published(folder / "added")
    removed = published(folder / "removed")
    assert everything.keys() == ids
    for id, events in everything.items():
        assert (events[0][0], events[-1][0]) == ("pending", "sent"), id  # or postponed meanwhile
        assert events == sorted(events, key=lambda event: event[1]), id
        must = [event for event in events if event[1] > added_at]
        got, gone = added.get(id, []), removed.get(id, [])
        assert got == events[len(events) - len(got) :], id
        assert set(must) <= set(got), id
        assert gone == events[: len(gone)], id
    assert added
    assert any(removed.values())
    assert not [id for id, events in removed.items() for _, at in events if at > removed_at]


@pytest.mark.slow
def test_every_event_reaches_every_sink_of_a_rolling_deploy_on_sqlite(tmp_path: Path) -> None:
    deploy(str(tmp_path / "homing.db"), tmp_path)


@pytest.mark.slow
def test_every_event_reaches_every_sink_of_a_rolling_deploy_on_postgres(
    tmp_path: Path, postgres_url: str
) -> None:
    deploy(postgres_url, tmp_path)


if __name__ == "__main__":
    _, url, where, name, sinks, number = sys.argv
    asyncio.run(run_process(url, Path(where), name, sinks.split(","), int(number)))
