"""A simulated message broker and the bridge that every process has to it. Checks invariant 19."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from random import Random

from msgspec import Struct

from homing.core.notifications import Content, Priority, Recipient
from homing.core.ports.bridges import BridgeMessage, HandledMessage
from homing.core.send_request import SendRequest
from simulation.checkers.shared_state import SECRET_MARKER
from simulation.plan import TYPES, BridgePlan
from simulation.poison import POISON
from simulation.shadow_state import SimulationState

_BATCH = 6


class _Message(Struct, frozen=True):
    key: str
    tenant: str
    request: SendRequest
    attempts: int
    max_attempts: int | None


class SimulatedBroker:
    """One queue. Messages that were not acknowledged go back to it when their consumer disconnects."""

    def __init__(
        self,
        plan: BridgePlan,
        state: SimulationState,
        answered: Callable[[str, Iterable[str]], None],
        rng: Random,
    ) -> None:
        """Creates a broker. `answered` gets the notification ids of acknowledged messages."""
        self.plan = plan
        self._state = state
        self._answered = answered
        self._rng = rng
        self._ready: deque[_Message] = deque()
        self._arrived = asyncio.Event()
        self._out: dict[str, dict[str, _Message]] = {}
        """Consumer → key → message that it has not acknowledged."""
        self._ids: dict[str, tuple[str, ...]] = {}
        """Key → ids of the notifications that the message became."""
        self.acknowledged = 0
        self.redelivered = 0

    def fails(self) -> bool:
        return self._rng.random() < self.plan.fail

    async def run(self) -> None:
        """Publishes all messages of the plan at random times."""
        moments = sorted(self._rng.randrange(self._state.plan.spread_ms) for _ in range(self.plan.messages))
        for number, at_ms in enumerate(moments):
            await asyncio.sleep(max(0, at_ms - self._state.ms) / 1000)
            self._put(self._message(number))

    @property
    def waiting(self) -> int:
        """Number of messages that are not acknowledged."""
        return len(self._ready) + sum(map(len, self._out.values()))

    def finish(self) -> None:
        """Checks, after the run, that every message was acknowledged (invariant 19)."""
        if self.acknowledged != self.plan.messages:
            missing = self.plan.messages - self.acknowledged
            self._state.violate("19", f"{missing} messages of the broker were not acknowledged")

    # From the bridges ----------------------------------------------------------------------------

    def connect(self, consumer: str) -> None:
        self._out.setdefault(consumer, {})

    def disconnect(self, consumer: str) -> None:
        """Makes the unacknowledged messages of a consumer ready again, for example after its crash."""
        for message in self._out.pop(consumer, {}).values():
            self.redelivered += 1
            self._put(message)

    async def take(self, consumer: str) -> list[_Message]:
        """Waits for messages and gives some to a consumer."""
        while not self._ready:
            self._arrived.clear()
            await self._arrived.wait()
        taken = [self._ready.popleft() for _ in range(min(len(self._ready), self._rng.randrange(_BATCH) + 1))]
        self._connection(consumer).update({message.key: message for message in taken})
        return taken

    def acknowledge(self, consumer: str, handled: Sequence[HandledMessage]) -> None:
        """Removes messages. Checks that each became notifications, and the same ones every time."""
        out = self._connection(consumer)
        for one in handled:
            message = out.pop(one.message.key, None)
            if message is None:
                raise ConnectionError("the message belongs to another consumer by now")
            if (one.rejection is not None) is not (message.request.type == POISON):
                self._state.violate("19", f"message {message.key} was rejected wrongly: {one.rejection}")
            if not one.ids and one.rejection is None:
                self._state.violate("19", f"message {message.key} was acknowledged before it was stored")
            if one.rejection is None:
                self.check_ids(one)
            self._answered(message.tenant, one.ids)
            self.acknowledged += 1

    def check_ids(self, one: HandledMessage) -> None:
        """Checks that a message that comes again leads to the notifications of its first delivery."""
        if self._ids.setdefault(one.message.key, one.ids) != one.ids:
            self._state.violate("19", f"message {one.message.key} became a second notification", one.ids[0])

    def _connection(self, consumer: str) -> dict[str, _Message]:
        if consumer not in self._out:
            raise ConnectionError("the connection to the broker was lost")
        return self._out[consumer]

    def _put(self, message: _Message) -> None:
        self._ready.append(message)
        self._arrived.set()

    def _message(self, number: int) -> _Message:
        rng, plan = self._rng, self._state.plan
        person = rng.randrange(40)
        request = SendRequest(
            recipient=Recipient(
                id=f"u{person}",
                email=f"{SECRET_MARKER}-{person}@example.org",
                phone=f"+1555{person:07d}",
                device_token=f"{SECRET_MARKER}-token-{person}",
                url=f"https://host{person % 3}.example.org/{SECRET_MARKER}/{person}",
            ),
            channels=(rng.choice(plan.channels).value,),
            type=POISON if plan.poison and number % 5 == 0 else rng.choice(TYPES),
            priority=rng.choice(tuple(Priority)).value,
            content=Content(title="Hello", body=f"{SECRET_MARKER} {number}"),
            synchronous=False,
        )
        attempts, own = rng.choice((0, 0, 1)), Random(f"{plan.seed}/maximum/{number}")
        if own.random() < 0.3:  # a random source of its own leaves all other decisions as they were
            attempts = own.randrange(4)
        most = own.choice((None, None, 1, 2, 4))
        return _Message(f"m{number}", rng.choice(plan.tenants), request, attempts, most)


class SimBridge:
    """The bridge of one process. Each of its calls fails now and then."""

    def __init__(self, broker: SimulatedBroker, consumer: str) -> None:
        self._broker = broker
        self._consumer = consumer

    async def open(self) -> None:
        """Connects to the broker."""
        self._maybe_fail()
        self._broker.connect(self._consumer)

    async def receive(self, limit: int) -> Sequence[BridgeMessage]:
        """Returns a few messages."""
        self._maybe_fail()
        return [
            BridgeMessage(
                key=one.key,
                request=one.request,
                tenant=one.tenant,
                attempts=one.attempts,
                max_attempts=one.max_attempts,
            )
            for one in await self._broker.take(self._consumer)
        ]

    async def acknowledge(self, handled: Sequence[HandledMessage]) -> None:
        """Acknowledges messages. May fail before or after the broker has noted it."""
        for one in handled:
            if one.ids:
                self._broker.check_ids(one)
        self._maybe_fail()
        await asyncio.sleep(0.01)
        self._broker.acknowledge(self._consumer, handled)
        self._maybe_fail()

    async def check(self) -> None:
        """Fails now and then."""
        self._maybe_fail()

    async def close(self) -> None:
        """Disconnects from the broker."""
        self._broker.disconnect(self._consumer)

    def _maybe_fail(self) -> None:
        if self._broker.fails():
            raise ConnectionError("the connection to the broker was lost")
