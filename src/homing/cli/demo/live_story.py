"""The demo on the dashboard: a trickle of messages, and events such as an outage, which buttons start."""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from homing.core.errors import StoreError

if TYPE_CHECKING:
    from homing.cli.demo.fake_providers import DemoProvider
    from homing.library import Homing

log = logging.getLogger("homing.demo")

OUTAGE_S = 45.0
"""How long pigeon is away."""

FLOOD = 400
"""Number of messages that a flood sends at once."""

UNKNOWN = 25
"""Number of messages to mailboxes that do not exist."""

_FIRST_S = 20.0
"""Time until the first outage, which starts by itself."""

_EVERY_S = 0.7

_TYPES = ("order_shipped", "invoice", "newsletter", "reminder")


class LiveStory:
    """Sends messages in the background, and starts the events of the demo."""

    def __init__(self, homing: Homing, folder: Path, pigeon: DemoProvider, hawk: DemoProvider) -> None:
        self._homing = homing
        self._folder = folder
        self._pigeon = pigeon
        self._hawk = hawk
        self._tasks: set[asyncio.Task[None]] = set()
        self._busy: set[str] = set()
        self._sent = 0

    @property
    def events(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """Name of each event → function that starts it. An event that is already going on is not repeated."""
        return {
            "start-an-outage": lambda: self._start("outage", self._outage),
            "send-a-flood": lambda: self._start("flood", self._flood),
            "kill-a-worker": lambda: self._start("kill", self._kill),
            "make-dead-letters": lambda: self._start("dead", self._dead_letters),
            "repair-the-mailboxes": lambda: self._start("repair", self._repair),
        }

    async def run(self) -> None:
        """Sends a trickle of messages until it is cancelled, and lets the story happen once."""
        self._keep(self._story())
        try:
            while True:
                await self._send(1)
                await asyncio.sleep(random.uniform(0.5, 1.5) * _EVERY_S)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _story(self) -> None:
        await asyncio.sleep(_FIRST_S)
        await self._start("dead", self._dead_letters)
        await self._start("outage", self._outage)

    async def _start(self, name: str, event: Callable[[], Awaitable[None]]) -> None:
        if name in self._busy:
            return
        self._busy.add(name)

        async def run() -> None:
            try:
                await event()
            except Exception as error:  # the other events and the trickle of messages go on
                log.error("the event %s of the demo ended early: %r", name, error)
            finally:
                self._busy.discard(name)

        self._keep(run())

    def _keep(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _outage(self) -> None:
        self._pigeon.up = False
        try:
            await asyncio.sleep(OUTAGE_S)
        finally:
            self._pigeon.up = True

    async def _flood(self) -> None:
        await self._send(FLOOD)

    async def _dead_letters(self) -> None:
        lost = {f"nobody{number}@example.org" for number in range(UNKNOWN)}
        for one in (self._pigeon, self._hawk):
            one.no_such_mailbox |= lost
        for address in sorted(lost):
            await self._submit({"email": address}, "email", "invoice")

    async def _repair(self) -> None:
        for one in (self._pigeon, self._hawk):
            one.no_such_mailbox.clear()

    async def _kill(self) -> None:
        """Lets another process claim work, and kills it in the middle."""
        await self._homing.stop_worker()
        try:
            child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "homing.cli.demo.fake_providers", str(self._folder)),
                stderr=asyncio.subprocess.DEVNULL,
            )
            await self._let_it_work_until_killed(child)
        finally:
            self._homing.start_worker()

    async def _let_it_work_until_killed(self, child: asyncio.subprocess.Process) -> None:
        try:
            await self._send(12)
            async with asyncio.timeout(20):
                while (await self._homing.queue_counts())["sending"] < 5:  # noqa: ASYNC110 (polls the store)
                    await asyncio.sleep(0.2)
            await asyncio.sleep(1.5)  # long enough to see it, and shorter than the timeout of the attempts
        except TimeoutError:
            log.error(
                "the other worker of the demo took nothing within 20 seconds; it is killed nevertheless"
            )
        finally:
            with suppress(ProcessLookupError):
                child.kill()
            await child.wait()

    async def _send(self, number: int) -> None:
        for _ in range(number):
            self._sent += 1
            kind = random.choice(_TYPES)
            if self._sent % 3 == 0:
                await self._submit({"phone": f"+49151{self._sent:08d}"}, "sms", kind)
            else:
                await self._submit({"email": f"reader{self._sent}@example.org"}, "email", kind)

    async def _submit(self, to: Mapping[str, str], channel: str, type: str) -> None:
        try:
            await self._homing.send(
                dict(to),
                channel=channel,
                type=type,
                subject="Your order is on its way",
                body="It keeps trying until it lands.",
                html="<h2>Your order is on its way</h2><p>Homing keeps trying until it <b>lands</b>.</p>",
                metadata={"order": f"A-{1000 + self._sent % 40}"},
            )
        except StoreError as error:  # the next message is sent nevertheless
            log.error("a message of the demo was not sent: %s", error)
