"""Asks providers for the status of messages without a receipt: those in doubt, and those sent some time ago.

The times of lookups are not stored. A notification is looked up in the first round after one of the delays of
`lookup_delays_ms` has elapsed since its status changed. If that round fails, the notification waits for the
next delay.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from msgspec.structs import replace

from homing.core.errors import StoreError
from homing.core.lifecycle.claims import provider_key
from homing.core.lifecycle.receipts import LookUpPolicy, Receipt, lookup_delays_ms
from homing.core.notifications import Attempt, Notification, Status
from homing.core.ports.providers import Delivery, SupportsLookup
from homing.core.ports.runtime import Clock
from homing.core.ports.stores import Backend
from homing.core.send_request import address_of
from homing.engine.delivery.breakers import Breakers
from homing.engine.plug_in_calls import call_within
from homing.engine.provider_roster import ProviderRoster
from homing.engine.receipts.callbacks import CallbackHandler

log = logging.getLogger("homing.look_ups")


_TIMEOUT_MS = 10_000

_MAX_CONCURRENT = 5


class StatusLookups:
    """Makes status lookups alongside a worker. The store elects one worker at a time to make them."""

    def __init__(
        self,
        *,
        backend: Backend,
        roster: ProviderRoster,
        breakers: Breakers,
        callbacks: CallbackHandler,
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
        self._last_round_at: int | None = None
        self._concurrency = asyncio.Semaphore(_MAX_CONCURRENT)

    @property
    def possible(self) -> bool:
        """True if at least one provider supports lookups."""
        return any(isinstance(listed.provider, SupportsLookup) for listed in self._roster)

    async def run(self) -> None:
        """Makes a round of lookups at each interval, until cancelled."""
        while True:
            await self.run_once()
            await self._clock.sleep_ms(self._policy.every_ms)

    async def run_once(self) -> None:
        """Makes one round of lookups if this worker is the leader. Logs errors instead of raising them."""
        try:
            if await self._backend.lead("look_ups", self._worker, 3 * self._policy.every_ms):
                await self.look_up()
        except StoreError as error:
            log.warning("cannot make lookups, the store is unavailable; trying again: %s", error)
        except Exception:
            log.exception("a round of lookups failed; trying again in the next round")

    async def look_up(self) -> int:
        """Looks up the notifications that are due for a lookup, and returns their number."""
        now = await self._backend.now_ms()
        since, self._last_round_at = self._last_round_at, now
        asked = await self._due_for_lookup(now - self._policy.every_ms if since is None else since, now)
        answers = await asyncio.gather(*(self._ask(*one) for one in asked), return_exceptions=True)
        for error in answers:
            if error is not None:  # raised only after the others have ended
                raise error
        return len(asked)

    async def _due_for_lookup(self, since: int, now: int) -> list[tuple[str, str]]:
        supporting = [
            listed.id
            for listed in self._roster
            if isinstance(listed.provider, SupportsLookup) and self._breakers.usable(listed.id)
        ]
        found: list[tuple[str, str]] = []
        policy = self._policy
        for status, after_ms in (
            (Status.IN_DOUBT, policy.doubt_after_ms),
            (Status.SENT, policy.silent_after_ms),
        ):
            for silence_ms in lookup_delays_ms(after_ms, policy.until_ms):
                left = policy.per_round - len(found)
                if not supporting or left <= 0:
                    return found
                found += await self._backend.silent(
                    status, supporting, after=since - silence_ms, until=now - silence_ms, limit=left
                )
        return found

    async def _ask(self, tenant: str, id: str) -> None:
        history = await self._backend.get(tenant, id)
        if history is None or not history.attempts:
            return
        attempt = history.attempts[-1]
        receipt = await self._fetch_receipt(history.notification, attempt)
        if receipt is not None:
            known = replace(receipt, notification_id=id, attempt=attempt.number)
            await self._callbacks.apply(self._roster[attempt.provider], [known])

    async def _fetch_receipt(self, notification: Notification, attempt: Attempt) -> Receipt | None:
        listed = self._roster.get(attempt.provider)
        if listed is None or not isinstance(listed.provider, SupportsLookup):
            return None
        try:
            delivery = _delivery(notification, attempt)
            look_up = partial(listed.look_up, delivery, attempt.provider_message_id)
            async with self._concurrency:
                found: object = await call_within(look_up, _TIMEOUT_MS)
        except Exception as error:  # a provider may raise anything; the text may contain the recipient
            log.info("a lookup at %s failed: %s", listed.id, type(error).__name__)
            return None
        return found if isinstance(found, Receipt) else None


def _delivery(notification: Notification, attempt: Attempt) -> Delivery:
    """Returns the delivery of an earlier attempt, with the timeout of a lookup."""
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
        idempotency_key=provider_key(notification.id, notification.bounce_floor),
        attempt=attempt.number,
        timeout_ms=_TIMEOUT_MS,
        expires_at=None if expires_at is None else int(expires_at.timestamp() * 1000),
        locale=notification.locale,
        metadata=notification.metadata,
    )
