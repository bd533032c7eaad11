"""The engine's front: sends, reads, commands and a worker, over whichever parts are handed in."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from msgspec import Struct, field

from homing.core.errors import (
    DeliveryFailed,
    DeliveryTimeout,
    IdempotencyConflict,
    InvalidRequest,
    NotFound,
    StoreError,
    StoreUnavailable,
)
from homing.core.model import (
    DEFAULT_TENANT,
    Acceptance,
    Claim,
    Mode,
    Notification,
    Reason,
    Settlement,
    Status,
    Submission,
)
from homing.core.modes import MODE_INFO
from homing.core.policy import Preset, Rule
from homing.core.ports import Backend, Chance, Clock, Directory, Renderer, Sink
from homing.core.presets import PRIORITY
from homing.core.request import SendRequest
from homing.core.states import FINAL
from homing.engine.alerts import Alerts
from homing.engine.breakers import Breakers
from homing.engine.clock import LocalWaker
from homing.engine.commands import Commands
from homing.engine.deliverer import Deliverer, Ready
from homing.engine.directory import RegistryDirectory
from homing.engine.intake import SYNCHRONOUS_TIMEOUT_MS, Intake, IntakeSettings
from homing.engine.operations import Operations
from homing.engine.policies import Policies
from homing.engine.relay import Relay
from homing.engine.room import Room, Slots
from homing.engine.roster import Roster
from homing.engine.spool import Spool
from homing.engine.stats import Processed
from homing.engine.upkeep import Upkeep, UpkeepSettings
from homing.engine.worker import Worker, WorkerSettings

log = logging.getLogger("homing")

_SEND_CHUNK = 500
_SPOOL_EVERY_MS = 5_000
_SETTLE_PAUSES_MS = (50, 100, 200, 400, 800, 1_600)
_T = TypeVar("_T")


class EngineSettings(Struct, frozen=True, kw_only=True):
    """Everything about the engine that is not one of its parts."""

    name: str
    """Of this process, as attempts and leases record it."""
    tenant: str = DEFAULT_TENANT
    preset: Preset = PRIORITY
    rules: tuple[Rule, ...] = ()
    intake: IntakeSettings = IntakeSettings()
    worker: WorkerSettings = WorkerSettings()
    slots: Slots = Slots()
    upkeep: UpkeepSettings = UpkeepSettings()
    queue_names: Mapping[Mode, str] = field(
        default_factory=lambda: {mode: info.queue_name for mode, info in MODE_INFO.items()}
    )
    spool: Path | None = None


class Parts(Struct, frozen=True, kw_only=True):
    """What is plugged in."""

    backend: Backend
    roster: Roster
    clock: Clock
    chance: Chance
    sinks: Mapping[str, tuple[Sink, frozenset[str]]] = field(default_factory=dict)
    directory: Directory | None = None
    renderer: Renderer | None = None


class SendResult(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The answer to one request. It is given only when the promise is kept on disk."""

    batch_id: str
    notification_ids: tuple[str, ...]
    status: str
    """`queued`, `spooled`, or the status that a synchronous send ended in.

    `purged`: one under a known idempotency key whose notification is no longer kept.
    """
    queue_name: str = ""
    duplicate: bool = False
    """Accepted before: by its idempotency key, or all of it inside a dedup window."""
    provider_message_id: str | None = None
    delivered_at: str | None = None

    @property
    def id(self) -> str:
        """The notification's id, where there is one."""
        if len(self.notification_ids) != 1:
            raise ValueError(
                f"the request became {len(self.notification_ids)} notifications; use notification_ids"
            )
        return self.notification_ids[0]


class Rejection(Struct, frozen=True, kw_only=True):
    """One request of many that was not accepted; the others are."""

    index: int
    field: str
    code: str
    message: str


class Engine(Operations, Commands):
    """One durable line from accept to settled. `async with` opens and closes it."""

    def __init__(self, parts: Parts, settings: EngineSettings) -> None:
        self._parts = parts
        self.settings = settings
        self.tenant = settings.tenant
        self._backend = parts.backend
        self._roster = parts.roster
        self._clock = parts.clock
        self._chance = parts.chance
        self._policies = Policies(
            settings.preset, settings.rules, registry=parts.backend, clock=parts.clock, chance=parts.chance
        )
        alerts = Alerts(parts.backend, parts.clock, parts.chance)
        self._breakers = Breakers(parts.roster, parts.backend, parts.clock, alerts, settings.name)
        directory = parts.directory or RegistryDirectory(parts.backend)
        self._deliverer = Deliverer(
            backend=parts.backend,
            roster=parts.roster,
            policies=self._policies,
            breakers=self._breakers,
            directory=directory,
            clock=parts.clock,
            chance=parts.chance,
        )
        self._intake = Intake(
            roster=parts.roster,
            policies=self._policies,
            directory=directory,
            renderer=parts.renderer,
            clock=parts.clock,
            chance=parts.chance,
            settings=settings.intake,
            name=settings.name,
        )
        self._waker = LocalWaker()
        self.on_settled: Callable[[Settlement, bool], None] = lambda settlement, applied: None
        """Told of every settlement that this process's worker has written, and whether it was applied."""
        self._relay = Relay(parts.backend, parts.sinks, parts.clock, settings.name)
        self.worker = self._new_worker()
        self._upkeep = Upkeep(
            backend=parts.backend,
            breakers=self._breakers,
            clock=parts.clock,
            alerts=alerts,
            worker=settings.name,
            lease_ms=lambda: self.worker.lease_ms,
            adopt=lambda claims: self.worker.adopt(claims),
            settings=settings.upkeep,
        )
        self._spool = Spool(settings.spool) if settings.spool else None
        self._running: list[asyncio.Task[None]] = []
        self._work: asyncio.Task[None] | None = None
        self._spooler: asyncio.Task[None] | None = None
        self._spool_waker = LocalWaker()
        self._spooled = False

    @property
    def policies(self) -> Policies:
        """The rules in force, and their changes at runtime."""
        return self._policies

    # Life ----------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Connects the store and brings its schema up to date."""
        await self._backend.open()
        await self._backend.migrate()
        if self._spool is not None:
            self._spooler = asyncio.create_task(self._drain_spool(), name="homing-spool")

    async def close(self) -> None:
        """Ends what is under way, settles it, and closes everything."""
        await self.stop_worker()
        if self._spooler is not None:
            self._spooler.cancel()
            await asyncio.gather(self._spooler, return_exceptions=True)
        for listed in self._roster:
            with suppress(Exception):
                await listed.provider.close()
        await self._backend.close()

    def start_worker(self) -> None:
        """Delivers in this process, beside whatever else it does."""
        if self._running:
            return
        self.worker = self._new_worker()
        self._running = [
            asyncio.create_task(self.worker.run(), name="homing-worker"),
            asyncio.create_task(self._upkeep.run(), name="homing-upkeep"),
            asyncio.create_task(self._relay.run(), name="homing-relay"),
        ]
        self._work = self._running[0]

    async def stop_worker(self, *, hard: bool = False) -> None:
        """Lets what is under way end (or, `hard`, breaks it off: its leases run out by themselves).

        A hard stop while a graceful one waits breaks that off too.
        """
        if hard and self._work is not None:
            self._work.cancel()
        if not self._running:
            return
        work, *others = self._running
        self._running = []
        self.worker.drain()
        await asyncio.gather(work, return_exceptions=True)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._relay.run_once()

    async def run_worker(self) -> None:
        """Works until it is cancelled or drained."""
        self.start_worker()
        work = self._running[0]
        try:
            await asyncio.wait([work])
        finally:
            await self.stop_worker()
        if not work.cancelled():
            work.result()

    async def process(self, limit: int = 50) -> Processed:
        """Takes what is due now, once, and says what became of it."""
        await self._drain_spool_once()
        worker = self._new_worker()
        asked_ms = self._clock.monotonic_ms()
        batch = await self._backend.reclaim(self.settings.name, limit, worker.lease_ms)
        self._breakers.learn_time(batch.now, asked_ms)
        worker.adopt(batch.claims)
        result = await worker.run_once(limit)
        await self._relay.run_once()
        return result

    # Sending -------------------------------------------------------------------------------------

    async def submit(
        self,
        request: SendRequest,
        *,
        tenant: str | None = None,
        if_unavailable: Literal["raise", "spool"] = "raise",
        connection: Any = None,
        asked: str = "",
    ) -> SendResult:
        """Accepts one request; what it answers is on disk. See `SendRequest` for what one can ask."""
        submission = await self._intake.prepare(tenant or self.tenant, request, asked=asked)
        if submission.lease_to is not None:
            if connection is not None:
                raise InvalidRequest("connection", "and synchronous exclude each other: it is sent at once")
            return await self._submit_now(submission)
        try:
            (answer,) = await self._backend.accept([submission], tx=connection)
        except StoreUnavailable:
            if if_unavailable != "spool":
                raise
            return await self._to_spool(submission)
        result = self._result(submission, answer)
        self._wake()
        if self._spooled:  # the store is back
            self._spooled = False
            self._spool_waker.wake()
        return result

    async def submit_many(
        self,
        requests: Iterable[SendRequest | InvalidRequest] | AsyncIterable[SendRequest | InvalidRequest],
        *,
        tenant: str | None = None,
        connection: Any = None,
    ) -> AsyncIterator[SendResult | Rejection]:
        """Accepts any number of requests in bounded memory; one answer each, in order.

        A request that is not acceptable (or was found so before: an error in its place) is answered with
        its `Rejection`; the others are accepted. Synchronous requests are refused here.
        """
        prepared: list[Submission | Rejection] = []
        index = 0
        async for request in each(requests):
            prepared.append(await self._prepare_one(tenant or self.tenant, request, index))
            index += 1
            if len(prepared) >= _SEND_CHUNK:
                for result in await self._accept_chunk(prepared, connection, index - len(prepared)):
                    yield result
                prepared = []
        for result in await self._accept_chunk(prepared, connection, index - len(prepared)):
            yield result

    async def wait(self, id: str, *, timeout_ms: int = 60_000) -> Notification:
        """Returns when the notification has ended, or as it is after `timeout_ms`."""
        return await self._ended(self.tenant, id, timeout_ms)

    async def _ended(self, tenant: str, id: str, timeout_ms: int) -> Notification:
        until_ms = self._clock.monotonic_ms() + timeout_ms
        while True:
            notification = (await self._history(tenant, id)).notification
            ended = notification.status in FINAL or notification.status is Status.IN_DOUBT
            if ended or self._clock.monotonic_ms() >= until_ms:
                return notification
            await self._clock.sleep_ms(50)

    async def _submit_now(self, submission: Submission) -> SendResult:
        """A synchronous send walks the same line: accepted leased, sent, settled, answered."""
        began_ms = self._clock.monotonic_ms()
        await self._breakers.refresh()
        (answer,) = await self._backend.accept([submission])
        self._raise_conflict(submission, answer)
        if not answer.claims:  # asked before under the same key, perhaps this very moment
            with suppress(NotFound):
                await self._ended(submission.tenant, answer.ids[0], SYNCHRONOUS_TIMEOUT_MS)
            return await self._settled_result(submission.tenant, answer)
        until_ms = began_ms + SYNCHRONOUS_TIMEOUT_MS  # for the whole call
        settlements: list[Settlement] = []
        started: list[Claim] = []
        try:
            await self._attempt_now(answer, settlements, started, until_ms)
        finally:
            # A caller that goes away must not lose the record of what was done.
            if not settlements:
                settlements = [self._deliverer.settle_lost(claim) for claim in started]
            if not settlements:
                settlements = [self._deliverer.give_up(claim) for claim in answer.claims]
            await asyncio.shield(self._settle_now(settlements))
        return await self._settled_result(submission.tenant, answer)

    async def _settle_now(self, settlements: list[Settlement]) -> None:
        """Keeps at it for a while: what was sent must not be answered as failed."""
        for pause_ms in _SETTLE_PAUSES_MS:
            try:
                await self._backend.settle(settlements)
                return
            except StoreUnavailable as error:
                log.warning("settling a synchronous send waits for the store: %s", error)
                await self._clock.sleep_ms(pause_ms)
        await self._backend.settle(settlements)

    async def _attempt_now(
        self, answer: Acceptance, settlements: list[Settlement], started: list[Claim], until_ms: int
    ) -> None:
        placed: list[Ready] = []
        try:
            async with asyncio.timeout((until_ms - self._clock.monotonic_ms()) / 1000):
                ready = await self._deliverer.guard(answer.claims, settlements.append)
                placed = await self._deliverer.route(ready, settlements.append)
                for one in placed:
                    await self._rate_token(one.claim.provider)
        except TimeoutError:
            log.info("synchronous send %s ran out of time before its attempt", answer.ids[0])
            return
        for one in placed:
            left_ms = max(1, until_ms - self._clock.monotonic_ms())
            started.append(one.claim)
            settlement = await self._deliverer.attempt(one, timeout_ms=left_ms)
            if settlement is not None:
                settlements.append(settlement)

    async def _rate_token(self, provider: str) -> None:
        """A synchronous send keeps to the provider's rate limit too, as long as its two seconds allow."""
        rate = self._roster[provider].rate
        while rate is not None:
            taken = await self._backend.take(f"provider:{provider}", rate, 1)
            if taken.granted:
                return
            await self._clock.sleep_ms(taken.wait_ms)

    async def _settled_result(self, tenant: str, answer: Acceptance) -> SendResult:
        found = await self._backend.get(tenant, answer.ids[0])
        if found is None:  # its key outlives it
            return SendResult(
                batch_id=answer.batch_id, notification_ids=answer.ids, status="purged", duplicate=True
            )
        notification = found.notification
        if notification.reason is Reason.DELIVERY_TIMEOUT:
            raise DeliveryTimeout(notification_id=notification.id)
        if notification.status not in (Status.SENT, Status.DELIVERED):
            why = notification.last_error or notification.reason or notification.status.value
            raise DeliveryFailed(
                f"Synchronous delivery failed: {why}. Notification NOT queued.",
                notification_id=notification.id,
            )
        ids = notification.provider_message_ids
        at = notification.delivered_at or notification.sent_at
        return SendResult(
            batch_id=answer.batch_id,
            notification_ids=answer.ids,
            status=notification.status.value,
            duplicate=bool(answer.duplicates),
            provider_message_id=ids[-1] if ids else None,
            delivered_at=at.isoformat() if at else None,
        )

    async def _prepare_one(
        self, tenant: str, request: SendRequest | InvalidRequest, index: int
    ) -> Submission | Rejection:
        try:
            if isinstance(request, InvalidRequest):
                raise request
            submission = await self._intake.prepare(tenant, request)
            if submission.lease_to is not None:
                raise InvalidRequest("synchronous", "is for one request at a time; use send")
        except InvalidRequest as error:
            return Rejection(index=index, field=error.field, code=error.code, message=error.message)
        return submission

    async def _accept_chunk(
        self, prepared: list[Submission | Rejection], connection: Any, first: int
    ) -> list[SendResult | Rejection]:
        batch = [p for p in prepared if isinstance(p, Submission)]
        answers = iter(await self._backend.accept(batch, tx=connection) if batch else ())
        results: list[SendResult | Rejection] = []
        for offset, one in enumerate(prepared):
            if isinstance(one, Rejection):
                results.append(one)
                continue
            try:
                results.append(self._result(one, next(answers)))
            except IdempotencyConflict as error:
                results.append(
                    Rejection(
                        index=first + offset, field="idempotencyKey", code=error.code, message=str(error)
                    )
                )
        if batch:
            self._wake()
        return results

    def _result(self, submission: Submission, answer: Acceptance) -> SendResult:
        self._raise_conflict(submission, answer)
        return SendResult(
            batch_id=answer.batch_id,
            notification_ids=answer.ids,
            status="queued",
            queue_name=self.settings.queue_names[submission.notifications[0].mode],
            duplicate=len(answer.duplicates) == len(answer.ids),
        )

    def _raise_conflict(self, submission: Submission, answer: Acceptance) -> None:
        if answer.conflict:
            raise IdempotencyConflict(
                f"idempotencyKey: {submission.idempotency_key!r} was used with another request; "
                "nothing was stored"
            )

    # Beside it -----------------------------------------------------------------------------------

    async def _to_spool(self, submission: Submission) -> SendResult:
        if self._spool is None:
            raise StoreUnavailable("the store is away and no spool file is configured (set `spool`)")
        kept = await self._spool.write(submission)
        self._spooled = True
        ids = tuple(new.id for new in kept.notifications)
        return SendResult(batch_id=kept.batch_id, notification_ids=ids, status="spooled")

    async def _drain_spool(self) -> None:
        while True:
            await self._drain_spool_once()
            await self._spool_waker.wait(_SPOOL_EVERY_MS)

    async def _drain_spool_once(self) -> None:
        if self._spool is None:
            return
        try:
            if taken := await self._spool.drain(self._backend):
                log.info("handed %d spooled requests over to the store", taken)
                self._wake()
        except (StoreError, OSError) as error:
            log.warning("the spool waits: %s", error)

    def _wake(self) -> None:
        self._waker.wake()

    def _new_worker(self) -> Worker:
        return Worker(
            self.settings.name,
            backend=self._backend,
            policies=self._policies,
            breakers=self._breakers,
            deliverer=self._deliverer,
            room=Room(
                roster=self._roster,
                breakers=self._breakers,
                backend=self._backend,
                clock=self._clock,
                slots=self.settings.slots,
            ),
            clock=self._clock,
            waker=self._waker,
            settings=self.settings.worker,
            on_settled=lambda settlement, applied: self.on_settled(settlement, applied),
        )


async def each(items: Iterable[_T] | AsyncIterable[_T]) -> AsyncIterator[_T]:
    """One loop over what may be an ordinary or an async iterable."""
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item
