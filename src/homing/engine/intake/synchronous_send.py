"""The synchronous send: accepts, attempts and settles a notification within one call.

`wait_until_ended` waits for the end of any notification.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from homing.core.errors import (
    DeliveryFailed,
    DeliverySkipped,
    DeliveryTimeout,
    HomingError,
    StoreError,
    StoreRejected,
    StoreUnavailable,
)
from homing.core.lifecycle.claims import Acceptance, Claim
from homing.core.lifecycle.outcomes import Settlement, SettleResult
from homing.core.lifecycle.receipts import ReceiptResult
from homing.core.lifecycle.refused_settlements import simpler_forms
from homing.core.lifecycle.states import LIVE, SUCCESSFUL
from homing.core.notifications import Mode, Notification, Reason, Status
from homing.core.ports.observers import NULL_OBSERVER, Observer
from homing.core.ports.runtime import Clock
from homing.core.ports.stores import Backend
from homing.core.routing.fair_share import reserve_of
from homing.core.routing.rate_limits import RateLimit, provider_bucket
from homing.engine.delivery.breakers import Breakers
from homing.engine.delivery.concurrency_limit import ConcurrencyLimit, SlotWaits
from homing.engine.delivery.deliverer import Deliverer, ReadyClaim
from homing.engine.intake.accept import SendResult, raise_conflict
from homing.engine.intake.recipient_lookup import SYNCHRONOUS_TIMEOUT_MS
from homing.engine.intake.requests import PreparedRequest, RepeatedRequest
from homing.engine.plug_in_calls import leave_behind
from homing.engine.provider_roster import ProviderRoster
from homing.engine.rate_tokens import RateTokens
from homing.engine.upkeep.lost_commits import LostCommits

log = logging.getLogger("homing.synchronous")


_SETTLE_PAUSES_MS = (50, 100, 200, 400, 800, 1_600)

_RECORD_MS = 40
"""Time that is left to record the result of an attempt that takes as long as it may."""

_FIRST_POLL_MS, _LAST_POLL_MS = 50, 1_000
"""Shortest and longest interval at which `wait_until_ended` reads a notification.

The interval is a twentieth of the time that was waited already, so that a long wait costs little.
"""

_BACKOFF_POLL_MS = 30_000
"""Longest interval while the next attempt is further away than that. Only a command or a receipt could end
the notification sooner."""


class _TokenTurns:
    """The turns in which the synchronous sends of one provider take its rate limit tokens."""

    def __init__(self) -> None:
        self.reserved = ConcurrencyLimit(1)
        """The turn of sends that may take tokens of the reserve."""
        self.shared = ConcurrencyLimit(1)
        """The turn of all others."""
        self.waiting: Counter[str] = Counter()
        """Tenant → number of its sends that wait for a token."""


class SynchronousSender:
    """Sends a notification within the caller's request.

    The call ends within two seconds of the request, whatever the store and the provider do. If the store is
    late, the caller gets `DeliveryTimeout`, and the send goes on in the background for one purpose only: to
    record its result. It starts no attempt any more.
    """

    def __init__(
        self,
        *,
        backend: Backend,
        roster: ProviderRoster,
        breakers: Breakers,
        deliverer: Deliverer,
        clock: Clock,
        lost_commits: LostCommits,
        observer: Observer = NULL_OBSERVER,
    ) -> None:
        self._backend = backend
        self._roster = roster
        self._lost_commits = lost_commits
        self._breakers = breakers
        self._deliverer = deliverer
        self._clock = clock
        self._observer = observer
        self._tokens = RateTokens(backend, clock)
        self._token_turns = {listed.id: _TokenTurns() for listed in roster if listed.rate is not None}
        """Provider with a rate limit → the turns in which sends take its tokens."""
        self._sends: set[asyncio.Task[SendResult]] = set()
        """Sends that are not recorded yet."""
        self._late: set[asyncio.Task[SendResult]] = set()
        """Those of them whose callers wait no longer."""

    async def send(self, submission: PreparedRequest, began_ms: int) -> SendResult:
        """Accepts, attempts and settles a submission, and returns the result.

        If the request was sent before, returns the result of the first send.

        Raises `DeliveryFailed`, `DeliverySkipped` or `DeliveryTimeout` if it was not sent. The timeout of two
        seconds counts from `began_ms`, the monotonic time of the caller's request.
        """
        until_ms = began_ms + SYNCHRONOUS_TIMEOUT_MS  # for the whole call
        stored: list[str] = []
        send = asyncio.create_task(self._send(submission, until_ms, stored))
        self._sends.add(send)
        send.add_done_callback(self._ended)
        try:
            await self._wait(send, until_ms)
        except asyncio.CancelledError:  # the caller is gone; an attempt in progress is recorded as lost
            send.cancel()
            await self._wait(send, until_ms)
            self._note_late(send)
            raise
        if not send.done():
            self._note_late(send)
            log.warning("a synchronous send timed out, because the store is late")
            raise DeliveryTimeout(notification_id="".join(stored))
        return send.result()

    async def close(self, within_ms: int) -> None:
        """Waits until the results of all sends are recorded, for at most `within_ms`, and aborts the rest.

        What is not recorded then fails when its lease expires.
        """
        if self._sends:
            await asyncio.wait(self._sends, timeout=within_ms / 1000)
        for send in self._sends:
            send.cancel()

    async def _wait(self, send: asyncio.Task[SendResult], until_ms: int) -> None:
        await asyncio.wait({send}, timeout=max(0, until_ms - self._clock.monotonic_ms()) / 1000)

    def _note_late(self, send: asyncio.Task[SendResult]) -> None:
        if not send.done():
            self._late.add(send)

    def _ended(self, send: asyncio.Task[SendResult]) -> None:
        self._sends.discard(send)
        late = send in self._late
        self._late.discard(send)
        if send.cancelled() or (error := send.exception()) is None:
            return
        if isinstance(error, StoreError):
            log.info("a synchronous send could not be recorded: %s", error)
        elif late and not isinstance(error, HomingError):
            log.error(
                "a synchronous send failed unexpectedly after its caller had timed out or left",
                exc_info=error,
            )

    async def _send(self, submission: PreparedRequest, until_ms: int, stored: list[str]) -> SendResult:
        """Sends a submission. Adds the id of the notification to `stored` as soon as it is stored."""
        if isinstance(submission, RepeatedRequest):
            raise_conflict(submission, submission.answer)
            stored.append(submission.answer.ids[0])
            return await self._repeated_result(submission.tenant, submission.answer, until_ms)
        await self._breakers.refresh()
        (answer,) = await self._backend.accept([submission])
        self._observer.accepted([submission], [answer])
        self._lost_commits.acknowledged([answer])
        raise_conflict(submission, answer)
        stored.append(answer.ids[0])
        if not answer.claims:
            return await self._repeated_result(submission.tenant, answer, until_ms)
        settlements: list[Settlement] = []
        started: list[Claim] = []
        try:
            await self._attempt_now(answer, settlements, started, until_ms - _RECORD_MS)
        finally:
            # Settle even if the caller is gone, so that the result is recorded.
            if not settlements:
                settlements = [self._deliverer.settle_lost(claim) for claim in started]
            if not settlements:
                settlements = [self._deliverer.give_up(claim) for claim in answer.claims]
            await asyncio.shield(self._settle_now(settlements, answer.claims))
        return await self._settled_result(submission.tenant, answer)

    async def _settle_now(self, settlements: list[Settlement], claims: Sequence[Claim]) -> None:
        """Writes the settlements. Retries, because a sent message must not be reported as failed."""
        for pause_ms in _SETTLE_PAUSES_MS:
            try:
                result = await self._settle(settlements, claims)
                break
            except StoreUnavailable as error:
                log.warning(
                    "cannot settle a synchronous send, the store is unavailable; trying again: %s", error
                )
                self._observer.store_failed("settle", error)
                await self._clock.sleep_ms(pause_ms)
        else:
            result = await self._settle(settlements, claims)
        by_id = {claim.id: claim for claim in claims}
        refused = {*result.stale, *result.missing}
        self._observer.settled([(one, by_id[one.id]) for one in settlements], refused)
        if result.failures:
            self._observer.receipts_applied((), ReceiptResult(failures=result.failures))

    async def _settle(self, settlements: list[Settlement], claims: Sequence[Claim]) -> SettleResult:
        """Writes the settlements, or the first simpler form of them that the store does not refuse."""
        try:
            return await self._backend.settle(settlements)
        except StoreRejected as error:
            self._observer.store_failed("settle", error)
            by_id = {claim.id: claim for claim in claims}
            for forms in zip(*(simpler_forms(one, by_id[one.id]) for one in settlements), strict=False):
                with suppress(StoreRejected):
                    return await self._backend.settle(forms)
            raise

    async def _attempt_now(
        self, answer: Acceptance, settlements: list[Settlement], started: list[Claim], until_ms: int
    ) -> None:
        placed: list[ReadyClaim] = []
        try:
            async with asyncio.timeout((until_ms - self._clock.monotonic_ms()) / 1000):
                ready = await self._deliverer.guard(answer.claims, settlements.append)
                placed = await self._deliverer.route(ready, settlements.append)
                for one in placed:
                    await self._take_token(one.claim)
        except TimeoutError:
            log.info("synchronous send %s ran out of time before its attempt", answer.ids[0])
            return
        for one in placed:
            settlement = await self._attempt(one, until_ms, partial(started.append, one.claim))
            settlements.append(settlement or self._deliverer.give_up(one.claim))

    async def _attempt(
        self, one: ReadyClaim, until_ms: int, on_started: Callable[[], None]
    ) -> Settlement | None:
        """Makes an attempt, and returns its settlement at its deadline even if the provider never returns."""
        expired: asyncio.Future[Settlement] = asyncio.get_running_loop().create_future()

        settled: list[Settlement | None] = []

        def on_expired(_: ReadyClaim, settlement: Settlement, __: asyncio.Task[Any]) -> None:
            expired.set_result(settlement)

        async def send() -> None:
            settled.append(await self._deliverer.attempt(one, on_expired, SlotWaits(), until_ms, on_started))

        attempt = asyncio.create_task(send())
        try:
            ends: set[asyncio.Future[Any]] = {attempt, expired}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            attempt.cancel()  # no effect on an attempt that has ended
            leave_behind(attempt)
        if expired.done():
            return expired.result()
        if not settled and attempt.cancelled():  # by its provider: this task was not cancelled
            return self._deliverer.settle_lost(one.claim)
        return settled[0] if settled else attempt.result()

    async def _take_token(self, claim: Claim) -> None:
        """Waits for a rate limit token of the provider. The caller's timeout limits the wait.

        Tenants take turns. The only send of a tenant that waits may take a token of the reserve of priority,
        and waits for no send that has to leave that reserve.
        """
        provider = claim.provider
        rate = self._roster[provider].rate
        if rate is None:
            return
        bucket, turns = provider_bucket(provider), self._token_turns[provider]
        reserve = reserve_of(Mode.PRIORITY, rate.burst)
        turns.waiting[claim.tenant] += 1
        try:
            if reserve and turns.waiting[claim.tenant] == 1:
                await self._take_reserved(bucket, rate, turns.reserved, claim.tenant)
            else:
                await self._take_shared(bucket, rate, turns.shared, claim.tenant, reserve)
        finally:
            turns.waiting[claim.tenant] -= 1
            if not turns.waiting[claim.tenant]:
                del turns.waiting[claim.tenant]

    async def _take_reserved(
        self, bucket: str, rate: RateLimit, turns: ConcurrencyLimit, tenant: str
    ) -> None:
        await turns.acquire(tenant)
        try:
            while wait_ms := (await self._tokens.take_shared(bucket, rate))[1]:
                await self._clock.sleep_ms(wait_ms)
        finally:
            turns.release()

    async def _take_shared(
        self, bucket: str, rate: RateLimit, turns: ConcurrencyLimit, tenant: str, reserve: int
    ) -> None:
        await turns.acquire(tenant)
        try:
            while True:
                left = reserve if turns.is_waiting(tenant) else 0
                if not (wait_ms := await self._tokens.take(bucket, rate, 1, left)):
                    return
                await self._clock.sleep_ms(wait_ms)
        finally:
            turns.release()

    async def _repeated_result(self, tenant: str, answer: Acceptance, until_ms: int) -> SendResult:
        """Returns the result of the first send, which may still be in progress."""
        left_ms = until_ms - self._clock.monotonic_ms()
        await wait_until_ended(self._backend, self._clock, tenant, answer.ids[0], left_ms)
        return await self._settled_result(tenant, answer)

    async def _settled_result(self, tenant: str, answer: Acceptance) -> SendResult:
        found = await self._backend.get(tenant, answer.ids[0])
        if found is None:  # idempotency keys are kept longer than notifications
            return SendResult(
                batch_id=answer.batch_id, notification_ids=answer.ids, status="purged", duplicate=True
            )
        notification = found.notification
        if notification.reason is Reason.DELIVERY_TIMEOUT:
            raise DeliveryTimeout(notification_id=notification.id)
        if notification.status is Status.SKIPPED:
            raise DeliverySkipped(
                f"Synchronous delivery skipped: {notification.reason}. Notification NOT queued.",
                notification_id=notification.id,
            )
        if notification.status not in SUCCESSFUL:
            why = notification.last_error or notification.reason or notification.status.value
            raise DeliveryFailed(
                f"Synchronous delivery failed: {why}. Notification NOT queued.",
                notification_id=notification.id,
            )
        ids = notification.provider_message_ids
        return SendResult(
            batch_id=answer.batch_id,
            notification_ids=answer.ids,
            status=notification.status.value,
            duplicate=bool(answer.duplicates),
            provider_message_id=ids[-1] if ids else None,
            delivered_at=notification.delivered_at,
            provider=notification.provider,
            sent_at=notification.sent_at,
        )


async def wait_until_ended(
    backend: Backend, clock: Clock, tenant: str, id: str, timeout_ms: int
) -> Notification | None:
    """Waits until a notification has ended or is in doubt, at most `timeout_ms`, and returns it.

    Returns None if the tenant has no notification with that id.
    """
    began_ms = clock.monotonic_ms()
    until_ms = began_ms + timeout_ms
    while (history := await backend.get(tenant, id)) is not None:
        notification, now_ms = history.notification, clock.monotonic_ms()
        if notification.status not in LIVE or now_ms >= until_ms:
            return notification
        poll_ms = max(_FIRST_POLL_MS, min((now_ms - began_ms) // 20, _LAST_POLL_MS))
        if notification.next_retry_at is not None:
            due_ms = int(notification.next_retry_at.timestamp() * 1000) - clock.now_ms()
            poll_ms = max(poll_ms, min(due_ms, _BACKOFF_POLL_MS, 10 * poll_ms))
        await clock.sleep_ms(max(1, min(poll_ms, until_ms - now_ms)))
    return None
