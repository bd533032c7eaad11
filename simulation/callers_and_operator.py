"""The users in a simulation run: callers that send requests and retry them, and an operator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta, timezone
from random import Random
from typing import Any, Literal

from msgspec.structs import replace

from homing.core.errors import (
    CommandRefused,
    ConfigError,
    DeliveryFailed,
    IdempotencyConflict,
    InvalidRequest,
    NotFound,
    StoreError,
    StoreRejected,
)
from homing.core.lifecycle.commands import CommandName
from homing.core.notifications import Channel, Content, Filter, Priority, Recipient, Status
from homing.core.ports.stores import Entry
from homing.core.retry.policy import Rule
from homing.core.routing.breaker import Phase
from homing.core.send_request import SendRequest
from homing.core.times import moment
from homing.engine.intake.accept import Rejection, SendResult
from homing.engine.intake.requests import NO_PRIOR_ATTEMPTS, PriorAttempts
from simulation.checkers.shared_state import SECRET_MARKER
from simulation.invariants import InvariantChecker
from simulation.plan import TYPES, SimulationPlan, random_policy
from simulation.poison import POISON
from simulation.process import SimProcess
from simulation.spool_file import SpoolFile

_ADDRESS_COUNT = 40

_OUT_OF_RANGE_TIMES = tuple(
    at.replace(tzinfo=timezone(timedelta(hours=hours)))
    for at, hours in ((datetime.max, -12), (datetime.max, 0), (datetime.min, 12), (datetime.min, 0))
)
"""Times outside the accepted range. A request with one of them must be rejected."""

_MAX_TRIES = 5


class _RenderedText(str):
    """A subclass of `str`, as some template engines return."""

    __slots__ = ()


class SimulatedCallers:
    """Simulated callers, which send random requests.

    A caller that gets no response repeats its request if the request has an idempotency key.
    """

    def __init__(
        self,
        plan: SimulationPlan,
        watch: InvariantChecker,
        some_process: Callable[[], SimProcess | None],
        spool: SpoolFile | None,
    ) -> None:
        self._plan = plan
        self._watch = watch
        self._some_process = some_process
        self._spool = spool
        self._spool_chance = Random(f"{plan.seed}/spooled requests")
        self._rng = Random(f"{plan.seed}/callers")
        self._odd_chance = Random(f"{plan.seed}/odd requests")
        self._keyed: list[tuple[str, SendRequest]] = []
        self._deduped: list[tuple[str, SendRequest]] = []
        self._accepted: dict[tuple[str, str], SendRequest] = {}
        """(tenant, idempotency key) → the request that was accepted under the key."""

    async def run(self) -> None:
        """Sends all requests of the plan at their times, and returns when each was answered or abandoned."""
        moments = sorted(self._rng.randrange(self._plan.spread_ms) for _ in range(self._plan.requests))
        asking: set[asyncio.Task[None]] = set()
        for at_ms in moments:
            wait_ms = at_ms - self._watch.state.ms
            if wait_ms > 0:
                await asyncio.sleep(wait_ms / 1000)
            if self._rng.random() < 0.05:
                work = self._send_batch(self._tenant(), [self._request(False) for _ in range(4)])
            else:
                work = self._send_request(*self._next())
            task = asyncio.create_task(work)
            asking.add(task)
            task.add_done_callback(asking.discard)
        while asking:
            await asyncio.wait(asking)

    async def _send_request(self, tenant: str, request: SendRequest) -> None:
        if_unavailable: Literal["raise", "spool"] = "raise"
        if self._spool is not None and _can_be_spooled(request):
            if_unavailable = "spool"
            if self._plan.poison and self._spool_chance.random() < 0.3:
                request = replace(request, type=POISON)
        for _ in range(_MAX_TRIES):
            process = self._some_process()
            if process is not None:
                work = process.engine.of(tenant).submit(
                    request, earlier=_prior_attempts(request), if_unavailable=if_unavailable
                )
                began_ms = self._watch.state.ms
                task = process.run(work)
                await asyncio.wait({task})
                if not self._plan.fault_plan.pause_every_ms:  # a paused process answers nothing
                    took_ms = self._watch.state.ms - began_ms
                    self._watch.answered_after(took_ms, synchronous=bool(request.synchronous))
                if self._answered(tenant, request, task):
                    return
                if request.idempotency_key is None:
                    break
            await asyncio.sleep(self._rng.randrange(100, 8_000) / 1000)

    def _answered(self, tenant: str, request: SendRequest, task: asyncio.Task[SendResult]) -> bool:
        if task.cancelled():
            return False
        error, key = task.exception(), request.idempotency_key
        if key is not None:
            if isinstance(error, InvalidRequest) and self._accepted.get((tenant, key)) == request:
                self._watch.refused(tenant, key)
            elif error is None:
                self._accepted.setdefault((tenant, key), request)
        if error is None and self._spool is not None and task.result().status == "spooled":
            self._spool.answered(task.result().notification_ids, poisoned=request.type == POISON)
        elif error is None:
            self._watch.answers(tenant, task.result().notification_ids)
        elif isinstance(error, DeliveryFailed):
            if error.notification_id:  # empty if the store was too late to store it in time
                self._watch.answers(tenant, [error.notification_id])
        elif not isinstance(error, (IdempotencyConflict, InvalidRequest)):
            if isinstance(error, StoreError):
                return False
            raise error
        return True

    async def _send_batch(self, tenant: str, requests: list[SendRequest]) -> None:
        process = self._some_process()
        if process is None:
            return

        place = self._odd_chance.randrange(len(requests) + 1)
        odd, acceptable = self._odd_request()
        if self._plan.poison:
            odd, acceptable = replace(self._request(False), type=POISON, synchronous=False), False
        batch = [*requests[:place], odd, *requests[place:]]

        async def send() -> list[SendResult | Rejection]:
            return [result async for result in process.engine.of(tenant).submit_many(batch)]

        task = process.run(send())
        await asyncio.wait({task})
        if task.cancelled() or isinstance(task.exception(), StoreError):
            return
        state = self._watch.state
        if (error := task.exception()) is not None:
            state.violate("2", f"one odd request failed its whole batch with {type(error).__name__}")
        for number, result in enumerate(task.result()):
            if isinstance(result, SendResult):
                self._watch.answers(tenant, result.notification_ids)
            if number != place and isinstance(result, Rejection) and result.code == StoreRejected.code:
                state.violate("22", "a request was rejected together with one that the store refuses")
            if number == place and isinstance(result, SendResult) is not acceptable:
                state.violate("2", f"an odd request returned {type(result).__name__}")

    def _odd_request(self) -> tuple[SendRequest, bool]:
        """Returns a request with an extreme time or text, and whether it must be accepted."""
        metadata: dict[str, object] = {"entry": 1}
        body, send_at, acceptable = "Hello", None, True
        match self._odd_chance.randrange(4):
            case 0:
                send_at, acceptable = self._odd_chance.choice(_OUT_OF_RANGE_TIMES), False
            case 1:
                body, acceptable = "\ud800", False
            case 2:
                metadata, acceptable = {"entry": object()}, False
            case _:
                body = _RenderedText("Hello")
        channel = self._plan.channels[0]
        content = Content(title=body, body=body)
        recipient = Recipient(
            email=f"{SECRET_MARKER}@example.org",
            phone="+15559999999",
            device_token=f"{SECRET_MARKER}-token",
            url=f"https://host0.example.org/{SECRET_MARKER}",
        )
        request = SendRequest(
            recipient=recipient,
            channel=channel.value,
            synchronous=False,
            content=content,
            send_at=send_at,
            metadata=metadata,
        )
        return request, acceptable

    # Requests ------------------------------------------------------------------------------------

    def _next(self) -> tuple[str, SendRequest]:
        """Returns the tenant and a request: a new one, a repeated one, or a new body with a used key."""
        rng = self._rng
        drawn = rng.random()
        if self._keyed and drawn < 0.08:
            return rng.choice(self._keyed)
        if self._deduped and drawn > 1 - self._plan.repeats:
            return rng.choice(self._deduped)
        tenant = self._tenant()
        if self._keyed and drawn < 0.12:
            tenant, earlier = rng.choice(self._keyed)
            return tenant, self._request(False, key=earlier.idempotency_key)
        request = self._request(rng.random() < 0.08, key=self._key() if rng.random() < 0.35 else None)
        if request.idempotency_key is not None:
            self._keyed.append((tenant, request))
        elif request.dedup_key is not None:
            self._deduped.append((tenant, request))
        return tenant, request

    def _request(self, synchronous: bool, key: str | None = None) -> SendRequest:
        rng, plan, now = self._rng, self._plan, self._watch.state.now
        channel = rng.choice(plan.channels)
        several = not synchronous and rng.random() < 0.1
        recipients = tuple(self._recipient() for _ in range(3)) if several else ()
        names = [c.id for c in plan.providers if channel in c.channels]
        send_at = now + rng.randrange(-5_000, 60_000) if rng.random() < 0.15 else None
        expires = rng.random() < 0.2
        after = max(now, send_at or now)
        return SendRequest(
            recipient=None if several else self._recipient(),
            recipients=recipients,
            channels=tuple(c.value for c in plan.channels)
            if not synchronous and rng.random() < 0.08
            else (channel.value,),
            type=rng.choice(TYPES),
            priority=rng.choices([p.value for p in Priority], (2, 3, 5, 3))[0],
            bulk=rng.random() < 0.1,
            content=Content(title="Hello", body=f"{SECRET_MARKER} {rng.randrange(30)}"),
            synchronous=synchronous,
            provider=rng.choice(names) if several is False and rng.random() < 0.12 else None,
            idempotency_key=key,
            dedup_key=f"d{rng.randrange(20)}"
            if not synchronous and rng.random() < 2 * plan.repeats
            else None,
            send_at=None if synchronous or send_at is None else moment(send_at),
            expires_at=moment(after + rng.choice((3_000, 20_000, 120_000, 600_000))) if expires else None,
            metadata={"entry": rng.randrange(1_000)},
        )

    def _recipient(self) -> Recipient:
        number = self._rng.randrange(_ADDRESS_COUNT)
        return Recipient(
            id=f"u{number}",
            email=f"{SECRET_MARKER}-{number}@example.org",
            phone=f"+1555{number:07d}",
            device_token=f"{SECRET_MARKER}-token-{number}",
            url=f"https://host{number % self._plan.hosts}.example.org/{SECRET_MARKER}/{number}",
        )

    def _tenant(self) -> str:
        tenants = self._plan.tenants
        return self._rng.choices(tenants, [2 ** (len(tenants) - n) for n in range(len(tenants))])[0]

    def _key(self) -> str:
        return f"k{self._rng.getrandbits(40):010x}"


def _can_be_spooled(request: SendRequest) -> bool:
    """Returns True if the ids of a spooled request are surely those under which it is stored later."""
    return not (request.synchronous or request.idempotency_key or request.dedup_key)


def _prior_attempts(request: SendRequest) -> PriorAttempts:
    """Returns the request's attempts in another system. Most requests have none.

    A repeated request has the same prior attempts each time.
    """
    entry = int(request.metadata["entry"])
    if request.synchronous or entry % 12:
        return NO_PRIOR_ATTEMPTS
    return PriorAttempts(attempts=entry % 5 % 3, max_attempts=(None, 2, 4)[entry % 7 % 3])


class SimulatedOperator:
    """An operator who uses a process without a worker.

    The operator issues commands, reads lists and histories, forces breakers, and edits reference data and
    policies.
    """

    def __init__(self, plan: SimulationPlan, watch: InvariantChecker, operator_process: SimProcess) -> None:
        self._plan = plan
        self._watch = watch
        self._operator_process = operator_process
        self._rng = Random(f"{plan.seed}/operator")
        self._by_hand = Random(f"{plan.seed}/operator/by hand")
        self._splitting = Random(f"{plan.seed}/operator/splits")
        self._forced: set[str] = set()
        self.commands = 0

    async def run(self) -> None:
        """Performs random actions until cancelled."""
        while True:
            mean_ms = self._plan.fault_plan.operator_every_ms
            await asyncio.sleep(self._rng.expovariate(1 / mean_ms) / 1000)
            await self._do(self._something())

    async def change_policies(self) -> None:
        """Changes random policy rules until cancelled."""
        while True:
            mean_ms = self._plan.fault_plan.policy_every_ms
            await asyncio.sleep(self._rng.expovariate(1 / mean_ms) / 1000)
            await self._do(self._policy())

    async def give_back(self) -> None:
        """Returns forced breakers to automatic control, so that every notification can end."""
        engine = self._operator_process.fronts[self._plan.tenants[0]]
        for provider in sorted(self._forced):
            for _ in range(_MAX_TRIES):
                if await self._do(engine.force_breaker(provider, None, who="op")):
                    break
                await asyncio.sleep(1)

    async def _do(self, work: Coroutine[Any, Any, object]) -> bool:
        task = self._operator_process.run(work)
        task.add_done_callback(
            lambda done: done.cancelled() or done.exception()
        )  # marks the exception as retrieved, even if this coroutine is cancelled
        await asyncio.wait({task})
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, (CommandRefused, NotFound, StoreError)):
            raise error
        return error is None

    async def _something(self) -> None:
        rng, tenant = self._rng, self._rng.choice(tuple(self._operator_process.fronts))
        engine = self._operator_process.fronts[tenant]
        self.commands += 1
        if self._plan.splits and self._splitting.random() < 0.1:
            await self._split()
        drawn = rng.random()
        if drawn < 0.1:
            await self._read(tenant)
        elif drawn < 0.16:
            await self._breaker()
        elif drawn < 0.22:
            await self._directory(tenant)
        elif drawn < 0.26:
            name = rng.choice((CommandName.RESEND, CommandName.RETRY, CommandName.CANCEL))
            wanted = (
                Filter(statuses=(Status.FAILED,)) if name is not CommandName.CANCEL else Filter(type="news")
            )
            async for _ in engine.bulk(name, wanted, who="op", why="bulk"):
                pass
        else:
            await self._command(tenant)

    async def _command(self, tenant: str) -> None:
        rng, engine = self._rng, self._operator_process.fronts[tenant]
        foreign = rng.random() < 0.1  # another tenant's notification, which must be reported as missing
        ids = [s.id for s in self._watch.state.shadows.values() if (s.tenant == tenant) is not foreign]
        if not ids:
            return
        id = ids[min(len(ids) - 1, int(len(ids) * (1 - rng.random() ** 2)))]
        shadow = self._watch.state.shadows[id]
        names = [c.id for c in self._plan.providers if shadow.channel in c.channels]
        forced = rng.choice(names) if rng.random() < 0.3 and names else None
        if self._plan.by_hand and self._by_hand.random() < 0.25:
            await engine.move_to_dead_letter(id, who="op", why="not needed")
            return
        match rng.choice(("cancel", "cancel", "retry", "retry", "resend", "acknowledge", "later", "resolve")):
            case "cancel":
                await engine.cancel(id, who="op", why="not needed")
            case "retry":
                await engine.retry(id, who="op", provider=forced)
            case "resend":
                await engine.resend(id, who="op", provider=forced)
            case "acknowledge":
                await engine.acknowledge(id, who="op", why="seen")
            case "later":
                await engine.reschedule(id, timedelta(seconds=rng.randrange(90)), who="op")
            case _:
                await engine.resolve(id, rng.choice((Status.SENT, Status.FAILED)), who="op")

    async def _read(self, tenant: str) -> None:
        engine = self._operator_process.fronts[tenant]
        page = await engine.list(Filter(), limit=20)
        if page.cursor is not None:
            await engine.list(Filter(), limit=20, cursor=page.cursor)
        if page.items:
            await engine.history(page.items[0].id)
            await engine.explain(page.items[-1].id)
        await engine.select_pending(limit=10)
        await engine.waiting()
        await engine.health_metrics()
        await engine.error_groups()

    async def _breaker(self) -> None:
        provider = self._rng.choice(self._plan.providers).id
        phase = self._rng.choice((Phase.OPEN, Phase.CLOSED, None, None))
        engine = self._operator_process.fronts[self._plan.tenants[0]]
        self._forced.add(provider)
        await engine.force_breaker(provider, phase, who="op")

    async def _split(self) -> None:
        rng, engine = self._splitting, self._operator_process.fronts[self._plan.tenants[0]]
        views = await engine.splits.list()
        if not views:
            return
        view = rng.choice(views)
        if view.override is not None and rng.random() < 0.5:
            await engine.splits.reset(view.channel, who="op")
            return
        shares = dict.fromkeys(view.providers, 0) | {rng.choice(view.providers): rng.choice((1, 5))}
        self._watch.state.note_override(view.channel)
        lasting = timedelta(seconds=rng.randrange(1, 120))
        await engine.splits.set(view.channel, shares, who="op", why="slow", lasting=lasting)

    async def _directory(self, tenant: str) -> None:
        rng, number = self._rng, self._rng.randrange(_ADDRESS_COUNT)
        channel = rng.choice(self._plan.channels)
        kind, key, value = rng.choice(
            (
                ("suppression", f"email:{SECRET_MARKER}-{number}@example.org:*", {"why": "asked"}),
                ("suppression", f"sms:+1555{number:07d}:news", {"why": "asked"}),
                ("preference", f"u{number}:digest:{channel.value}", {"allowed": False}),
                ("device", f"{SECRET_MARKER}-token-{number}", {"active": channel is Channel.EMAIL}),
            )
        )
        if rng.random() < 0.25:
            await self._operator_process.store.delete(tenant, kind, [key])
        else:
            entry = Entry(tenant=tenant, kind=kind, key=key, value=dict(value), version=-1)
            await self._operator_process.store.put([entry], who="op")

    async def _policy(self) -> None:
        rng, engine = self._rng, self._operator_process.fronts[self._plan.tenants[0]]
        name = f"r-{rng.choice(TYPES)}"
        try:
            if rng.random() < 0.2:
                await engine.policies.remove(name, who="op")
            else:
                policy = random_policy(rng)
                is_odd = self._plan.odd_rules and rng.random() < 0.5
                if is_odd:
                    field = rng.choice(("timeout_ms", "max_age_ms", "base_ms", "cap_ms", "jitter_ms"))
                    policy = replace(policy, **{field: 2**63})
                rule = Rule(name=name, type=name.removeprefix("r-"), policy=policy)
                await engine.policies.set(rule, who="op", why="better")
                if is_odd:
                    self._watch.state.violate("14", f"a rule with {field} = 2^63 was accepted")
        except ConfigError:
            return
        self._watch.state.note("op", f"change rule {name}")
