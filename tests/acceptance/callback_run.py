"""Posts provider callbacks to the service in random order: repeated, early, delayed, and forged.

    python tests/acceptance/callback_run.py --callbacks 10000 --seed 1

Each notification has a fate: the events that its providers report. Whatever the order, every fate has one
correct end, and forged callbacks change nothing. Several shuffles of the same fates are run and compared.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import logging
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec

from homing import Filter, Homing, SendRequest, SendResult, Status
from homing.api.settings import ServiceSettings
from homing.core.notifications import Content, Recipient

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.event_loops import PRODUCTION
from support.fake_vendors import EVENT_FIELDS, PUBLIC, FakeVendors, Post, Report, forged, posts
from support.running_service import RunningService

SETTLED_WITHIN_S = 600.0
POSTERS = 4
AGAIN, LOST, FORGED, EARLY = 0.2, 0.1, 0.1, 0.1
"""Shares of callbacks: repeated, lost and posted later, forged, posted before the send is answered."""

CHANNELS = {"sms": ("twilio", "sns"), "email": ("sendgrid", "acs"), "push": ("fcm", "fcm")}


class Fate(msgspec.Struct, frozen=True):
    """The events of the first, second and third message, and the status in which it must end."""

    first: tuple[str, ...]
    ends: Status
    second: tuple[str, ...] = ("sent", "delivered")
    third: tuple[str, ...] = ("delivered",)


FATES = (
    Fate(("queued", "sent", "delivered"), Status.DELIVERED),
    Fate(("queued", "sent"), Status.SENT),
    Fate(("queued", "sent", "soft"), Status.DELIVERED),
    Fate(("sent", "soft"), Status.DELIVERED, second=("sent", "soft")),
    Fate(("queued", "sent", "hard"), Status.FAILED),
    Fate(("sent", "soft", "delivered"), Status.DELIVERED),
    Fate(("hard", "delivered"), Status.DELIVERED),
    Fate(("soft", "hard", "sent"), Status.FAILED, second=("sent", "hard")),
    Fate(("delivered", "open", "click"), Status.DELIVERED),
    Fate(("delivered", "spam"), Status.FAILED),
    Fate(("queued", "delivered", "unsubscribe"), Status.DELIVERED),
)
EVERYWHERE = FATES[:7]
"""Fates that every vendor can report."""


class Planned(msgspec.Struct, frozen=True):
    """A notification with the events that will be reported."""

    channel: str
    address: str
    fate: Fate

    def told(self, vendor: str, number: int) -> Iterator[str]:
        """Returns the events of that vendor's n-th message to it."""
        first, second = CHANNELS[self.channel]
        stage = 2 * (number - 1) + (vendor != first) if first != second else number - 1
        stages = (self.fate.first, self.fate.second, self.fate.third)
        return (what for what in stages[min(stage, 2)] if what in EVENT_FIELDS[vendor])

    def request(self) -> SendRequest:
        field = {"sms": "phone", "email": "email", "push": "device_token"}[self.channel]
        return SendRequest(
            recipient=Recipient(**{field: self.address}),
            channel=self.channel,
            content=Content(title="Hello", body="Hello"),
        )


class Outcome(msgspec.Struct, kw_only=True):
    """The result of one shuffle."""

    ends: dict[str, str] = msgspec.field(default_factory=dict)
    """Address → status and reason."""
    silenced: tuple[str, ...] = ()
    """Suppressed addresses and inactive devices, which receipts also cause."""
    posted: Counter[str] = msgspec.field(default_factory=Counter)
    answers: Counter[str] = msgspec.field(default_factory=Counter)
    wrong: list[str] = msgspec.field(default_factory=list)
    seconds: float = 0.0


class Result(msgspec.Struct, kw_only=True):
    """The results of all shuffles of one plan."""

    outcomes: list[Outcome]
    notifications: int
    callbacks: int

    @property
    def good(self) -> bool:
        first, *others = self.outcomes
        same = all((one.ends, one.silenced) == (first.ends, first.silenced) for one in others)
        return same and not any(one.wrong for one in self.outcomes)


def plan(callbacks: int, seed: int) -> list[Planned]:
    """Plans as many notifications as are needed for this number of callbacks."""
    rng, told = random.Random(f"{seed}/plan"), 0
    found: list[Planned] = []
    while told < callbacks:
        channel, number = rng.choice(list(CHANNELS)), len(found)
        address = {
            "sms": f"+1555{number:07d}",
            "email": f"p{number}@example.org",
            "push": f"token-{number}",
        }[channel]
        fate = rng.choice(FATES if channel == "email" else EVERYWHERE)
        found.append(Planned(channel, address, fate))
        told += sum(1 for _ in found[-1].told(CHANNELS[channel][0], 1))
    return found


class Shuffling:
    """One run: a service, its vendors, and their reports in a random order."""

    def __init__(self, folder: Path, planned: Sequence[Planned], seed: str) -> None:
        self._planned = {one.address: one for one in planned}
        self._chance = random.Random(seed)
        self._vendors = FakeVendors(
            lambda vendor, address, number: self._planned[address].told(vendor, number)
        )
        self._vendors.before_answering = self._tell_early
        self._serving = RunningService(
            PRODUCTION,
            ServiceSettings(public_url=PUBLIC),
            store=str(folder / f"{seed.replace('/', '-')}.db"),
            providers=self._vendors.providers(),
            worker=True,
            receipts={"pause_ms": 0},
            rules=[{"name": "soon", "base_ms": "50ms", "factor": 1.0, "jitter": "none"}],
            sinks={"log": {"events": []}},
        )
        self._told_early: set[str] = set()
        self.outcome = Outcome()

    def run(self) -> Outcome:
        began = time.monotonic()
        with self._serving as self._service:
            self._send()
            while reports := self._wave():
                self._post(reports)
            self._service.on_loop(self._look)
        self.outcome.seconds = round(time.monotonic() - began, 1)
        return self.outcome

    def _send(self) -> None:
        async def send(engine: Homing) -> None:
            async for result in engine.send_many(one.request() for one in self._planned.values()):
                assert isinstance(result, SendResult), result

        asyncio.run_coroutine_threadsafe(send(self._service.engine), self._service._loop).result(300)

    async def _tell_early(self, reports: list[Report]) -> None:
        """Posts some reports while their send is in progress, before the service has written the attempt."""
        for report in reports:
            if self._chance.random() < EARLY:
                self._told_early.add(report.id)
                (post,) = posts([report])
                await asyncio.to_thread(self._posted, post, 204, "early")

    def _wave(self) -> list[Report]:
        """Returns the reports that are left when nothing happens any more."""
        deadline = time.monotonic() + SETTLED_WITHIN_S
        while time.monotonic() < deadline:
            counts: dict[str, int] = self._service.on_loop(lambda engine: engine.queue_counts())
            if not any(counts[name] for name in ("pending", "retrying", "sending")):
                break
            time.sleep(0.05)
        else:
            self.outcome.wrong.append(f"it never settled: {counts}")
            return []
        taken: list[Report]
        taken, self._vendors.reports = self._vendors.reports, []
        return taken

    def _post(self, reports: list[Report]) -> None:
        """Shuffles the reports, repeats some, loses some until later, and adds forged ones."""
        lost: list[Report] = []
        first: list[Report] = []
        for report in reports:
            if report.id not in self._told_early:
                (lost if self._chance.random() < LOST else first).append(report)
        first += [report for report in reports if self._chance.random() < AGAIN]
        lies = [_lie(report, self._chance) for report in reports if self._chance.random() < FORGED]
        self._chance.shuffle(first)
        self._chance.shuffle(lost)
        work: list[tuple[Post, int, str]] = []
        for told in (first, lost):
            for batch in _batches(told, self._chance):
                work += [(post, 204, "told") for post in posts(batch)]
        for lie in lies:
            work.insert(self._chance.randrange(len(work) + 1), (forged(lie), 401, "forged"))
        self._in_parallel(work)

    def _in_parallel(self, work: list[tuple[Post, int, str]]) -> None:
        queue: SimpleQueue[tuple[Post, int, str] | None] = SimpleQueue()
        for one in (*work, *[None] * POSTERS):
            queue.put(one)

        def post() -> None:
            connection = http.client.HTTPConnection("127.0.0.1", self._service.port, timeout=120)
            while (one := queue.get()) is not None:
                self._posted(*one, connection)
            connection.close()

        posters = [threading.Thread(target=post) for _ in range(POSTERS)]
        for poster in posters:
            poster.start()
        for poster in posters:
            poster.join()

    def _posted(
        self, post: Post, wanted: int, how: str, connection: http.client.HTTPConnection | None = None
    ) -> None:
        line = connection or http.client.HTTPConnection("127.0.0.1", self._service.port, timeout=120)
        line.request("POST", post.path, body=post.body, headers=dict(post.headers))
        answer = line.getresponse()
        said = answer.read()
        if connection is None:
            line.close()
        self.outcome.posted[how] += len(post.reports)
        self.outcome.answers[f"{how} {answer.status}"] += 1
        if answer.status != wanted:
            self.outcome.wrong.append(f"{how} {post.path}: {answer.status} {said[:200]!r}")

    async def _look(self, engine: Homing) -> None:
        """Returns the final status of each notification, read from the engine."""
        cursor: str | None = None
        while True:
            page = await engine.list(Filter(), limit=500, cursor=cursor)
            for one in page.items:
                address = one.recipient.phone or one.recipient.email or one.recipient.device_token or ""
                self.outcome.ends[address] = f"{one.status.value} {one.reason or ''}".strip()
                planned = self._planned[address]
                if one.status is not planned.fate.ends:
                    said = f"{address}: {one.status.value} after {planned.fate}"
                    self.outcome.wrong.append(said)
            cursor = page.cursor
            if cursor is None:
                break
        self.outcome.silenced = await _silenced(engine)


def _lie(report: Report, rng: random.Random) -> Report:
    """Returns a report that contradicts the truth."""
    words = [what for what in EVENT_FIELDS[report.vendor] if what != report.what]
    return Report(report.vendor, report.message_id, rng.choice(words), report.echo)


def _batches(reports: list[Report], rng: random.Random) -> Iterator[list[Report]]:
    start = 0
    while start < len(reports):
        size = rng.randrange(1, 30)
        yield reports[start : start + size]
        start += size


async def _silenced(engine: Homing) -> tuple[str, ...]:
    found: list[str] = []
    for kind in ("suppression", "device"):
        after = ""
        while True:
            entries = await engine._backend.list_entries("default", kind, after=after, limit=500)
            found += [f"{kind} {entry.key}" for entry in entries]
            if len(entries) < 500:
                break
            after = entries[-1].key
    return tuple(found)


def run(folder: Path, *, callbacks: int, seed: int, shufflings: int) -> Result:
    """Runs the same fates in several orders."""
    planned = plan(callbacks, seed)
    outcomes = [Shuffling(folder, planned, f"{seed}/{number}").run() for number in range(shufflings)]
    return Result(outcomes=outcomes, notifications=len(planned), callbacks=callbacks)


def main() -> int:
    """Runs and prints the result. The exit code is 1 if something is wrong."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    asked.add_argument("--callbacks", type=int, default=10_000)
    asked.add_argument("--seed", type=int, default=1)
    asked.add_argument("--shufflings", type=int, default=3)
    given: Any = asked.parse_args()
    logging.getLogger("homing").setLevel(logging.ERROR)  # each forged one logs a warning
    with tempfile.TemporaryDirectory() as folder:
        result = run(Path(folder), callbacks=given.callbacks, seed=given.seed, shufflings=given.shufflings)
    for number, one in enumerate(result.outcomes, 1):
        ends = Counter(one.ends.values())
        print(f"shuffling {number}: {dict(one.posted)} in {one.seconds} s, answers {dict(one.answers)}")
        print(f"  {dict(ends)}, {len(one.silenced)} silenced")
        for wrong in one.wrong[:20]:
            print(f"  WRONG {wrong}")
    print(f"{result.notifications} notifications: {'all the same' if result.good else 'NOT THE SAME'}")
    return 0 if result.good else 1


if __name__ == "__main__":
    sys.exit(main())
