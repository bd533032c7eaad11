"""Engines on one store in memory in virtual time, with providers and shortcuts for tests of the engine."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import pytest

from homing import Homing, InvalidRequest, Listed
from homing.compose import ProviderArgument, list_provider
from homing.core.errors import StoreUnavailable
from homing.core.lifecycle.claims import Claim, ClaimBatch, ClaimRequest
from homing.core.lifecycle.events import Event
from homing.core.lifecycle.outcomes import Outcome
from homing.core.notifications import Channel, OutcomeKind, Recipient, Status
from homing.core.ports.providers import Delivery
from homing.core.retry.decide import RecipientFacts
from homing.core.routing.breaker import Breaker, Phase
from homing.providers.local.scripted import ScriptedProvider
from homing.rehearsal.virtual_time import VirtualClock, VirtualLoop
from homing.stores.sqlite import SqliteStore
from homing.stores.sqlite.memory_database import MemoryDatabase
from homing.testing.store_interception import intercept_operations

SECOND, MINUTE, HOUR, DAY = 1.0, 60.0, 3600.0, 86_400.0

K = OutcomeKind
R = TypeVar("R")
ADA = "ada@example.org"
PHONE = "+15550100"

STEADY: dict[str, Any] = {"name": "steady", "base_ms": "10s", "factor": 1.0, "cap_ms": 0, "jitter": "none"}
"""Retries every ten seconds, exactly."""


def steady(**fields: Any) -> list[dict[str, Any]]:
    """Returns the rules of a test with exact times: a retry every ten seconds, plus these fields."""
    return [{**STEADY, **fields}]


@intercept_operations
class WatchedStore(SqliteStore):
    """A store in memory that counts its calls and can be made unavailable.

    Every call yields to other tasks once, like a store with a disk or a network.
    """

    def __init__(
        self, clock: VirtualClock, database: MemoryDatabase | None = None, *, checks_clock: bool = False
    ) -> None:
        """`checks_clock`: the store notices a jump of the clock. Otherwise, a jump means that time passes."""
        self._database = database or MemoryDatabase()
        self._virtual_clock = clock
        steady_clock = clock.monotonic_ms if checks_clock else None
        super().__init__(self._database, clock=clock.now_ms, steady_clock=steady_clock)
        self.calls: Counter[str] = Counter()
        self.away: set[str] = set()
        """Operations that fail until they are removed from this set, or `everything`."""
        self.stumbles: Counter[str] = Counter()
        """Operations that fail this many more times."""
        self.claims: list[ClaimRequest] = []
        self.on_call: Callable[[str], Awaitable[None]] | None = None

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection to the database in memory, for triggers that refuse rows."""
        return self._database.connection

    def twin(self) -> WatchedStore:
        """Returns the same data on another connection, which can be made unavailable by itself."""
        return WatchedStore(self._virtual_clock, self._database)

    async def _intercept(self, operation: str, perform: Callable[[], Coroutine[Any, Any, R]]) -> R:
        self.calls[operation] += 1
        await asyncio.sleep(0)
        if self.on_call is not None:
            await self.on_call(operation)
        if self.stumbles[operation] > 0:
            self.stumbles[operation] -= 1
            raise StoreUnavailable
        if self.away & {operation, "everything"}:
            raise StoreUnavailable
        return await perform()

    async def claim(self, request: ClaimRequest) -> ClaimBatch:
        self.claims.append(request)
        return await self._intercept("claim", partial(super().claim, request))


class EngineHarness:
    """One store, one clock, and the engines of a test."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.clock = VirtualClock(loop)
        self.store = WatchedStore(self.clock)
        self.events: list[Event] = []
        self._engines: list[Homing] = []

    def make(self, providers: Mapping[str, ProviderArgument] | None = None, **settings: Any) -> Homing:
        """Returns an engine that is not open yet."""
        settings.setdefault("worker_name", f"w{len(self._engines) + 1}")
        settings.setdefault("on_event", self.events.append)
        engine = Homing(
            settings.pop("store", self.store),
            providers=providers or {"mail": ScriptedProvider("mail")},
            clock=settings.pop("clock", self.clock),
            random_source=random.Random(len(self._engines)),
            **settings,
        )
        self._engines.append(engine)
        return engine

    async def open(
        self,
        providers: Mapping[str, ProviderArgument] | None = None,
        *,
        working: bool = True,
        **settings: Any,
    ) -> Homing:
        """Returns an open engine, with a running worker unless `working` is False."""
        engine = self.make(providers, **settings)
        await engine.open()
        if working:
            engine.start_worker()
        return engine

    async def close(self) -> None:
        for engine in self._engines:
            await engine.stop_worker(hard=True)
            await engine.close()

    def alerts(self, name: str | None = None) -> list[dict[str, Any]]:
        """Returns the alerts so far, in order."""
        told = [event.payload for event in self.events if event.name == "Alert"]
        return [payload for payload in told if name in (None, payload["alert"])]


class TimedProvider(ScriptedProvider):
    """A scripted provider that records the time of each send (seconds) and the concurrent sends."""

    def __init__(self, name: str = "timed", script: Sequence[Any] = (), **options: Any) -> None:
        super().__init__(name, script, **options)
        self.times: list[float] = []
        self.busy = 0
        self.busiest = 0

    async def send(self, delivery: Delivery) -> Outcome:
        self.times.append(round(asyncio.get_running_loop().time(), 2))
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        try:
            return await super().send(delivery)
        finally:
            self.busy -= 1

    @property
    def gaps(self) -> list[float]:
        """Seconds between consecutive attempts."""
        return [round(b - a, 1) for a, b in pairwise(self.times)]


class FailingProvider(TimedProvider):
    """Fails until `repair` is called."""

    def __init__(self, name: str = "failing", **options: Any) -> None:
        super().__init__(name, usual=K.TRANSIENT, **options)
        self.up = False

    def repair(self) -> None:
        self.usual = K.ACCEPTED
        self.up = True


class RecipientHook:
    """A user's own recipient service: a function of the claims."""

    def __init__(self, facts: Callable[[Sequence[Claim]], Any]) -> None:
        self._facts = facts
        self.asked = 0

    async def resolve(self, tenant: str, ids: Collection[str]) -> Mapping[str, Recipient]:
        return {}

    async def facts(self, claims: Sequence[Claim]) -> Mapping[str, RecipientFacts]:
        self.asked += 1
        answer = self._facts(claims)
        if asyncio.iscoroutine(answer):
            answer = await answer
        return answer  # type: ignore[no-any-return]


class Silent(Exception):
    """An exception of a user that raises another one instead of describing itself."""

    def __str__(self) -> str:
        raise RuntimeError("it has no text")


def serving(name: str, provider: Any, *channels: str, **options: Any) -> Listed:
    """Returns a provider for these channels (default: email) with its settings."""
    return list_provider(name, provider, channels or ("email",), **options)


async def mail(engine: Homing, to: str = ADA, **fields: Any) -> str:
    """Sends an email and returns its id."""
    return (await engine.send(to, **{"channel": "email", "body": "Hello", **fields})).id


async def text(engine: Homing, to: str = PHONE, **fields: Any) -> str:
    """Sends a text message and returns its id."""
    return (await engine.send(to, **{"channel": "sms", "body": "Hello", **fields})).id


async def status(engine: Homing, id: str) -> Status:
    return (await engine.get(id)).status


async def phase(harness: EngineHarness, provider: str = "mail") -> Phase:
    """Returns the phase of the shared breaker."""
    return (await harness.store.breakers()).get(provider, Breaker()).phase


async def stored(harness: EngineHarness) -> int:
    """Returns how many notifications the store has ever accepted."""
    return sum(tally.count + tally.purged for tally in await harness.store.tallies(None))


async def refused(harness: EngineHarness, fields: dict[str, Any], **settings: Any) -> InvalidRequest:
    """Sends these fields, expects a refusal without anything stored, and returns the error."""
    engine = await harness.open({"any": ScriptedProvider()}, working=False, **settings)
    given = {"recipient": ADA, "channel": "email", "body": "Hello", **fields}
    with pytest.raises(InvalidRequest) as caught:
        await engine.send(given.pop("recipient"), **given)
    assert await harness.store.tallies(None) == ()
    return caught.value


async def seconds(duration: float) -> None:
    """Lets virtual time pass."""
    await asyncio.sleep(duration)


EMAIL, SMS = Channel.EMAIL, Channel.SMS
