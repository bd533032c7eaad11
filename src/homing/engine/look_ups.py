"""Asking providers what became of messages that nothing is heard of: in doubt, or sent and long silent.

Nothing is written down about it: a notification is asked about in the round in which the length of its
silence passes one of the moments of `core.looking_up`. A round that is missed only costs the next moment.
"""

from __future__ import annotations

import asyncio
import logging

from msgspec.structs import replace

from homing.core.errors import StoreError
from homing.core.looking_up import LookUpPolicy, moments_ms
from homing.core.model import Attempt, Notification, Receipt, Status
from homing.core.ports import Backend, Clock, Delivery, LooksUp
from homing.core.request import address_of
from homing.engine.breakers import Breakers
from homing.engine.callbacks import Callbacks
from homing.engine.roster import Roster

log = logging.getLogger("homing.look_ups")

_TIMEOUT_MS = 10_000
_AT_ONCE = 5


class LookUps:
    """Runs beside a worker; one of all workers asks at a time."""

    def __init__(
        self,
        *,
        backend: Backend,
        roster: Roster,
        breakers: Breakers,
        callbacks: Callbacks,
        clock: Clock,
        worker: str,
        policy: LookUpPolicy,
    ) -> None:
        self._backend = backend
        self._roster = roster
        self._breakers = breakers
        self._callbacks = callbacks
        self._clock = clock
        self._worker = worker
        self._policy = policy
        self._looked_at: int | None = None
        self._some_at_once = asyncio.Semaphore(_AT_ONCE)

    @property
    def possible(self) -> bool:
        """Whether any provider can be asked at all."""
        return any(isinstance(listed.provider, LooksUp) for listed in self._roster)

    async def run(self) -> None:
        """Looks up until cancelled."""
        while True:
            await self.run_once()
            await self._clock.sleep_ms(self._policy.every_ms)

    async def run_once(self) -> None:
        """One round; a store that is away is asked again in the next."""
        try:
            if await self._backend.lead("look_ups", self._worker, 3 * self._policy.every_ms):
                await self.look_up()
        except StoreError as error:
            log.warning("look-ups wait for the store: %s", error)
        except Exception:
            log.exception("a round of look-ups failed; the next one goes on")

    async def look_up(self) -> int:
        """Asks about those whose silence has just come to one of its moments; how many were asked about."""
        now = await self._backend.now_ms()
        since, self._looked_at = self._looked_at, now
        asked = await self._silent(now - self._policy.every_ms if since is None else since, now)
        await asyncio.gather(*(self._ask(tenant, id) for tenant, id in asked))
        return len(asked)

    async def _silent(self, since: int, now: int) -> list[tuple[str, str]]:
        able = [
            listed.id
            for listed in self._roster
            if isinstance(listed.provider, LooksUp) and self._breakers.usable(listed.id)
        ]
        found: list[tuple[str, str]] = []
        policy = self._policy
        for status, after_ms in (
            (Status.IN_DOUBT, policy.doubt_after_ms),
            (Status.SENT, policy.silent_after_ms),
        ):
            for silence_ms in moments_ms(after_ms, policy.until_ms):
                left = policy.per_round - len(found)
                if not able or left <= 0:
                    return found
                found += await self._backend.silent(
                    status, able, after=since - silence_ms, until=now - silence_ms, limit=left
                )
        return found

    async def _ask(self, tenant: str, id: str) -> None:
        history = await self._backend.get(tenant, id)
        if history is None or not history.attempts:
            return
        attempt = history.attempts[-1]
        receipt = await self._answer(history.notification, attempt)
        if receipt is not None:
            known = replace(receipt, notification_id=id, attempt=attempt.number)
            await self._callbacks.apply(self._roster[attempt.provider], [known])

    async def _answer(self, notification: Notification, attempt: Attempt) -> Receipt | None:
        listed = self._roster.get(attempt.provider)
        if listed is None or not isinstance(listed.provider, LooksUp):
            return None
        try:
            delivery = _delivery(notification, attempt)
            async with self._some_at_once, asyncio.timeout(_TIMEOUT_MS / 1000):
                found: object = await listed.provider.look_up(delivery, attempt.provider_message_id)
        except Exception as error:  # a provider may fail in any way; its text may name the recipient
            log.info("look-up at %s failed: %s", listed.id, type(error).__name__)
            return None
        return found if isinstance(found, Receipt) else None


def _delivery(notification: Notification, attempt: Attempt) -> Delivery:
    """The attempt as it was sent."""
    expires_at = notification.expires_at
    return Delivery(
        notification_id=notification.id,
        tenant=notification.tenant,
        channel=notification.channel,
        type=notification.type,
        priority=notification.priority,
        recipient=notification.recipient,
        address=address_of(notification.recipient, notification.channel),
        content=notification.content,
        idempotency_key=notification.id,
        attempt=attempt.number,
        timeout_ms=_TIMEOUT_MS,
        expires_at=None if expires_at is None else int(expires_at.timestamp() * 1000),
        locale=notification.locale,
        metadata=notification.metadata,
    )
