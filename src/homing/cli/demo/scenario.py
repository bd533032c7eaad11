"""The five parts of the demo: deliveries, an outage, the recovery, a dead letter, a killed worker."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from homing.cli.common.masking import RecipientMask
from homing.cli.common.screen import styled
from homing.cli.common.units import format_count
from homing.cli.demo.fake_providers import DemoProvider
from homing.cli.demo.screen import DemoScreen
from homing.cli.operations.explain import build_timeline

if TYPE_CHECKING:
    from homing.core.ports.stores import Backend
    from homing.library import Homing


_UNKNOWN_MAILBOX = "grace@example.org"

_PATIENCE_S = 60.0
"""Longest wait for one expected event, in seconds. After it, the demo continues without the event."""


class DemoShow:
    """Runs the demo once, in one store."""

    def __init__(
        self,
        homing: Homing,
        backend: Backend,
        folder: Path,
        stage: DemoScreen,
        pigeon: DemoProvider,
        hawk: DemoProvider,
    ) -> None:
        self._homing = homing
        self._backend = backend
        self._folder = folder
        self._stage = stage
        self._pigeon = pigeon
        self._hawk = hawk
        self._privacy = RecipientMask(show=False)
        self.accepted = 0

    async def perform(self) -> None:
        """Runs all parts in order while a background task updates the screen."""
        self._homing.on_settled = self._stage.settled
        watching = asyncio.create_task(self._watch())
        try:
            self._homing.start_worker()
            await self._deliveries()
            await self._outage()
            await self._recovery()
            await self._dead_letter()
            await self._killed_worker()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            self._stage.flush()

    async def _deliveries(self) -> None:
        self._stage.act(1, "Notifications are accepted, stored, and delivered")
        self._stage.say("route for email: pigeon first, hawk if pigeon fails")
        await self._send(14, every_ms=60)
        await self._all_quiet()
        await self._stage.pause(1.5)

    async def _outage(self) -> None:
        self._stage.act(2, "Pigeon has an outage")
        self._pigeon.up = False
        self._stage.say("pigeon now answers every request with 503; new notifications keep coming")
        await self._send(10, every_ms=130)
        await self._until(lambda: self._is_phase("pigeon", "open"))
        await self._all_quiet()
        self._stage.say(
            "hawk took over at once and delivered all of them, without a wait for pigeon's backoff"
        )
        self._stage.say("while the breaker is open, pigeon gets no requests")
        await self._stage.pause(2.0)

    async def _recovery(self) -> None:
        self._stage.act(3, "Pigeon comes back")
        self._pigeon.up = True
        self._pigeon.latency_ms = 250
        self._stage.say("a health check succeeds, so the next notification is the trial")
        await asyncio.sleep(0.9)
        await self._send(6, every_ms=150)
        await self._until(lambda: self._is_phase("pigeon", "closed"))
        await self._all_quiet()
        self._pigeon.latency_ms = 120
        await self._stage.pause(1.5)

    async def _dead_letter(self) -> None:
        stage, homing = self._stage, self._homing
        stage.act(4, "A failure that no retry can fix")
        self._pigeon.no_such_mailbox.add(_UNKNOWN_MAILBOX)
        (dead,) = await self._send(1, to=_UNKNOWN_MAILBOX)
        await homing.wait(dead, timeout_ms=int(_PATIENCE_S * 1000))
        stage.say("not retried and not failed over: the address is wrong for every provider")
        group = (await homing.error_groups(1))[0]
        error = self._privacy.error(group.last_error)
        stage.say(
            styled("homing dead groups", "bold"),
            f"  {group.count} × {group.reason}: {group.error_code} {error}",
        )
        stage.say(styled("homing explain", "bold"), f"      {stage.number(dead)}:")
        await self._explain(dead)
        await stage.pause(2.5)
        self._pigeon.no_such_mailbox.clear()
        stage.say(
            "the mailbox is created, and an operator resends the email:", styled("homing dead resend", "bold")
        )
        again = await homing.resend(dead, who="demo", why="the mailbox exists now")
        self.accepted += 1
        stage.accepted((again,))
        await homing.wait(again, timeout_ms=int(_PATIENCE_S * 1000))
        stage.say(
            f"delivered as {stage.number(again)}; {stage.number(dead)} is acknowledged and linked to it"
        )
        await stage.pause(0.8)

    async def _killed_worker(self) -> None:
        stage = self._stage
        stage.act(5, "A worker is killed in the middle of its work")
        await self._homing.stop_worker()
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "homing.cli.demo.fake_providers",
            str(self._folder),
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            stage.say(f"process {child.pid} is now the worker")
            ids = await self._send(8)
            await self._until(lambda: self._has_status("sending", 8))
            stage.say(f"process {child.pid} has leased {await self._count('sending')} and is sending them …")
            await asyncio.sleep(0.3)
        finally:
            child.kill()
            await child.wait()
        stage.say(
            styled("✗", "red"), styled(f"kill -9 {child.pid}", "bold red"), "– no shutdown, no clean-up"
        )
        self._homing.start_worker()
        stage.say("a new worker starts; the killed worker's leases expire and are reclaimed")
        await self._until(lambda: self._has_status("sending", 0))
        await self._all_quiet(_PATIENCE_S + 4)
        stage.say(f"the history of {stage.number(ids[0])}:")
        await self._explain(ids[0])
        await stage.pause(1.0)

    async def _send(self, count: int, *, to: str = "", every_ms: int = 0) -> list[str]:
        ids: list[str] = []
        for _ in range(count):
            self.accepted += 1
            address = to or f"reader{self.accepted}@example.org"
            sent = await self._homing.send(
                address, channel="email", type="demo", subject="Hello", body="It keeps trying until it lands."
            )
            self._stage.accepted(sent.notification_ids)
            ids.extend(sent.notification_ids)
            await asyncio.sleep(every_ms / 1000)
        first = "; each was on disk before its id was returned" if len(ids) == self.accepted else ""
        self._stage.say(f"accepted {format_count(count, 'notification')}{first}")
        return ids

    async def _explain(self, id: str) -> None:
        history = await self._homing.history(id)
        self._stage.flush()
        self._stage.screen.table(
            ("       AT", "WHAT", "WHERE", "RESULT", "DETAIL~"),
            [(f"       {row[1]}", *row[2:]) for row in build_timeline(history, self._privacy)],
        )

    async def _watch(self) -> None:
        """Updates the screen from the store, 20 times per second."""
        while True:
            for provider in (self._pigeon.name, self._hawk.name):
                state = (await self._backend.breakers()).get(provider)
                self._stage.phase(provider, state.phase.value if state else "closed")
            self._stage.counts = await self._homing.queue_counts()
            self._stage.flush(older_than_s=0.3)
            await asyncio.sleep(0.05)

    async def _all_quiet(self, patience_s: float = _PATIENCE_S) -> None:
        async def quiet() -> bool:
            counts = await self._homing.queue_counts()
            return not (counts["pending"] or counts["sending"] or counts["retrying"])

        await self._until(quiet, patience_s)
        self._stage.flush()

    async def _until(self, what: Callable[[], Awaitable[bool]], patience_s: float = _PATIENCE_S) -> None:
        try:
            async with asyncio.timeout(patience_s):
                while not await what():  # noqa: ASYNC110 (polls the store)
                    await asyncio.sleep(0.05)
        except TimeoutError:
            self._stage.say(styled("(this takes longer than usual; the demo continues)", "bright_black"))

    async def _is_phase(self, provider: str, phase: str) -> bool:
        return self._stage.phases.get(provider) == phase

    async def _has_status(self, status: str, count: int) -> bool:
        return await self._count(status) == count

    async def _count(self, status: str) -> int:
        return (await self._homing.queue_counts())[status]
