"""Commands on existing notifications, one or many at a time, and the purge of old data."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from math import ceil
from typing import Any

from msgspec import Struct

from homing.core.errors import CommandRefused, IdempotencyConflict, InvalidRequest, NotFound
from homing.core.ids import uuid7
from homing.core.lifecycle.commands import AmendResult, Command, CommandName
from homing.core.lifecycle.states import SUCCESSFUL, after_command
from homing.core.notifications import Channel, Filter, Mode, Notification, Status
from homing.core.plain_values import enum_member, is_storable, plain_text
from homing.core.ports.runtime import Clock, RandomSource
from homing.core.ports.stores import Backend, Retention
from homing.core.request_decoding import read_filter
from homing.core.send_request import address_of
from homing.core.statistics import DryRun
from homing.core.times import moment, span_ms
from homing.engine.delivery.breakers import Breakers
from homing.engine.delivery.timers import Timers
from homing.engine.intake.accept import SendOperations
from homing.engine.intake.dead_requests import is_dead_request
from homing.engine.isolation import write_in_parts
from homing.engine.operations.statistics import QueueOperations
from homing.engine.provider_roster import ProviderRoster
from homing.engine.upkeep.upkeep import Upkeep

log = logging.getLogger("homing.commands")

_STEP_SIZE = 100

_DRY_RUN_STEP_SIZE = 300
"""A dry run holds no locks, so its steps may be larger."""

_LAST_STEP_MS = 100
"""Time that the last step of a dry run may take beyond the time of the dry run."""

_DUE_NOW = frozenset({CommandName.RETRY, CommandName.RESEND, CommandName.RESCHEDULE})
"""Commands after which notifications are due at once if many are changed together."""


class BulkProgress(Struct, frozen=True, kw_only=True, rename="camel"):
    """Progress of a bulk command. With `dry_run`, `done` counts the notifications that would be changed."""

    matched: int
    done: int
    refused: int
    stopped: str | None = None
    """Why the command stopped early. None if the command did not stop early."""


class Commands:
    """Commands on one notification, or on all notifications that match a filter."""

    def __init__(
        self,
        tenant: str,
        *,
        backend: Backend,
        sends: SendOperations,
        queue: QueueOperations,
        breakers: Breakers,
        roster: ProviderRoster,
        clock: Clock,
        random_source: RandomSource,
        upkeep: Upkeep,
        timers: Timers,
    ) -> None:
        self.tenant = tenant
        self._backend = backend
        self._sends = sends
        self._queue = queue
        self._breakers = breakers
        self._roster = roster
        self._clock = clock
        self._random_source = random_source
        self._upkeep = upkeep
        self._timers = timers

    async def cancel(self, id: str, *, who: str = "api", why: str = "") -> bool:
        """Cancels a notification.

        Returns False if an attempt is in flight. That attempt continues, but no further attempt is made.
        """
        result = await self._apply(id, Command(name=CommandName.CANCEL, who=who, why=why))
        return id in result.applied

    async def retry(
        self, id: str, *, who: str = "api", why: str = "", provider: str | None = None
    ) -> Notification:
        """Makes a notification due now and returns it. Grants one more attempt if none is left.

        `provider` forces the provider of the next attempt.
        """
        found = await self._queue.get(id)
        if is_dead_request(found):
            raise CommandRefused(
                f"retry is not possible: {id} contains a request that was never accepted. Resend it instead."
            )
        await self._apply(id, self._build_command(CommandName.RETRY, found, who, why, provider))
        self._timers.rescheduled({id: found.priority})
        return await self._queue.get(id)

    async def resend(self, id: str, *, who: str = "api", why: str = "", provider: str | None = None) -> str:
        """Creates a new notification with the same message and returns its id.

        The original is acknowledged and linked to the new notification. If it is the dead letter of a request
        that was never accepted, the request is accepted now, and the original acknowledged.
        """
        found = await self._queue.get(id)
        if is_dead_request(found):
            return await self._resend_request(found, who, why, provider)
        result = await self._apply(id, self._build_command(CommandName.RESEND, found, who, why, provider))
        self._timers.rescheduled({result.resent[id]: found.priority})
        return result.resent[id]

    async def resend_if_request(self, id: str, *, new_id: str, who: str, why: str) -> bool:
        """Resends the dead letter of a request that was never accepted, under the given id.

        Returns False, and changes nothing, if the notification is not such a dead letter.
        """
        found = await self._queue.get(id)
        if not is_dead_request(found):
            return False
        await self._resend_request(found, who, why, None, new_id)
        return True

    async def _resend_request(
        self, dead: Notification, who: str, why: str, provider: str | None, new_id: str | None = None
    ) -> str:
        plain_text(who, "who")
        plain_text(why, "why")
        try:
            new = await self._sends.submit_again(dead, provider, new_id=new_id)
        except IdempotencyConflict as error:
            raise CommandRefused(
                f"resend is not possible: {dead.id} was already resent, with another choice of provider. "
                "Resend the new notification instead."
            ) from error
        except InvalidRequest as error:
            raise CommandRefused(
                f"resend is not possible: the request in {dead.id} cannot be accepted: {error}"
            ) from error
        await self.acknowledge(dead.id, who=who, why=why or f"resent as {new}")
        return new

    async def acknowledge(self, id: str, *, who: str, why: str = "") -> None:
        """Marks a dead letter as seen."""
        await self._apply(id, Command(name=CommandName.ACKNOWLEDGE, who=who, why=why))

    async def reschedule(self, id: str, delay: timedelta, *, who: str = "api", why: str = "") -> None:
        """Makes a waiting notification due after `delay`, which may be up to 100 years."""
        delay_ms = span_ms(delay, "delay")
        found = await self._queue.get(id)
        await self._apply(id, Command(name=CommandName.RESCHEDULE, who=who, why=why, delay_ms=delay_ms))
        self._timers.rescheduled({id: found.priority}, delay_ms)

    async def resolve(self, id: str, status: Status | str, *, who: str, why: str = "") -> None:
        """Resolves a notification that is in doubt, as `sent` or `failed`."""
        chosen = enum_member(Status, status, "status")
        if chosen not in (Status.SENT, Status.FAILED):
            raise InvalidRequest(
                "status", f"is {status}; a notification in doubt can be resolved only as sent or failed"
            )
        await self._apply(id, Command(name=CommandName.RESOLVE, who=who, why=why, resolution=chosen))

    async def move_to_dead_letter(self, id: str, *, who: str, why: str = "") -> None:
        """Ends a notification that waits, or is in doubt, as a dead letter. It can be resent later."""
        await self._apply(id, Command(name=CommandName.FAIL, who=who, why=why))

    async def bulk(
        self,
        name: CommandName | str,
        filter: Filter | Mapping[str, Any],
        *,
        who: str,
        why: str = "",
        dry_run: bool = False,
        rate_per_second: float | None = None,
        as_of: datetime | None = None,
    ) -> AsyncGenerator[BulkProgress, None]:
        """Applies a command to all notifications that match a filter, in steps, and yields the progress.

        The oldest notification comes first. A resend or retry stops if any provider on the routes of its
        notifications has an open breaker, or if no provider of a route works. Skips synchronous
        notifications, requests that were never accepted, which can only be resent one by one, and
        notifications that changed after `as_of`. An interrupted run can therefore be repeated with the same
        `as_of` without changing any notification twice. The default of `as_of` is the start of the call for a
        resend, which would otherwise reach the notifications that it has created, and no limit for other
        commands.
        """
        name = enum_member(CommandName, name, "command")
        if name is CommandName.RESOLVE:
            raise InvalidRequest("command", "is resolve, which works on one notification at a time")
        if rate_per_second is not None and not 0 < rate_per_second < float("inf"):
            raise InvalidRequest("rate_per_second", f"is {rate_per_second}; it must be greater than 0")
        filter = read_filter(filter)
        plain_text(who, "who")
        plain_text(why, "why")
        step = _STEP_SIZE if rate_per_second is None else max(1, min(_STEP_SIZE, int(rate_per_second)))
        if dry_run:
            step = _DRY_RUN_STEP_SIZE
        if as_of is None and name is CommandName.RESEND:
            as_of = moment(await self._backend.now_ms())
            await self._clock.sleep_ms(1)  # so that what the command changes is newer
        matched = done = refused = 0
        async for found in self._matching(name, filter, step, as_of):
            ids = [n.id for n in found]
            matched += len(ids)
            if dry_run:
                done += len(ids)
                yield BulkProgress(matched=matched, done=done, refused=0)
                continue
            if stopped := await self.why_stopped(name, {n.channel for n in found}):
                yield BulkProgress(matched=matched, done=done, refused=refused, stopped=stopped)
                return
            for result in await self._amend_isolated(name, found, who, why):
                if result is None:
                    refused += 1
                    continue
                done += len(result.applied) + len(result.requested)
                refused += len(result.refused) + len(result.missing)
                if name in _DUE_NOW:
                    changed = {n.id: n.priority for n in found if n.id in result.applied}
                    self._timers.rescheduled({result.resent.get(id_, id_): changed[id_] for id_ in changed})
            yield BulkProgress(matched=matched, done=done, refused=refused)
            if rate_per_second is not None:
                await self._clock.sleep_ms(int(1000 * len(ids) / rate_per_second))

    async def dry_run(
        self,
        name: CommandName | str,
        filter: Filter | Mapping[str, Any],
        *,
        rate_per_second: float | None = None,
        within: timedelta = timedelta(seconds=2),
    ) -> DryRun:
        """Counts what a bulk command would change, within this time, and how long it would take.

        The count then ends after its current step, or in the middle of it if the step takes long because few
        of many notifications match. Its result is marked as not complete.
        """
        matched, complete = 0, True
        within_ms = span_ms(within, "within")
        give_up_ms = self._clock.monotonic_ms() + within_ms
        async with aclosing(self.bulk(name, filter, who="dry run", dry_run=True)) as steps:
            try:
                async with asyncio.timeout((within_ms + _LAST_STEP_MS) / 1000):
                    async for progress in steps:
                        matched = progress.matched
                        if self._clock.monotonic_ms() > give_up_ms:
                            complete = False
                            break
            except TimeoutError:
                complete = False
        takes_ms = None if rate_per_second is None else ceil(1000 * matched / rate_per_second)
        return DryRun(matched=matched, complete=complete, takes_ms=takes_ms)

    async def _amend_isolated(
        self, name: CommandName, found: Sequence[Notification], who: str, why: str
    ) -> list[AmendResult | None]:
        """Applies a command to notifications, and returns the results of the calls that were made.

        A notification that the store refuses to change is logged and counted with None. It harms no other.
        """

        async def apply(part: Sequence[Notification]) -> AmendResult | None:
            command = self._build_bulk_command(name, part, who, why)
            return await self._backend.amend(self.tenant, [n.id for n in part], command)

        async def refuse(one: Notification, error: Exception) -> None:
            log.error("%s of %s is not possible, the store refuses it: %s", name.value, one.id, error)

        return await write_in_parts(found, apply, refuse)

    async def purge(
        self,
        retention: Retention | None = None,
        on_step: Callable[[Mapping[str, int]], bool | None] = lambda so_far: None,
        *,
        dry_run: bool = False,
    ) -> dict[str, int]:
        """Deletes data of all tenants that is older than its retention, and returns counts by kind.

        `on_step` is called with the counts after each step, and ends the purge early by returning True. With
        `dry_run`, nothing is deleted and only the notifications that would be deleted are counted.
        """
        work = self._upkeep.count_purgeable if dry_run else self._upkeep.purge
        return await work(retention, on_step)

    def _build_command(
        self, name: CommandName, notification: Notification, who: str, why: str, provider: str | None
    ) -> Command:
        chosen = outlet = None
        if provider is not None:
            first = self._roster.first_step(notification.channel, provider)
            chosen, outlet = first.provider, first.outlet(notification.tenant, _address(notification))
        return Command(
            name=name,
            who=who,
            why=why,
            provider=chosen,
            outlet=outlet,
            new_ids={notification.id: self._new_id()},
            batch_id=self._new_id(),
            max_age_ms=self._queue.policy_of(notification).max_age_ms,
        )

    def _build_bulk_command(
        self, name: CommandName, found: Sequence[Notification], who: str, why: str
    ) -> Command:
        new_ids = {n.id: self._new_id() for n in found} if name is CommandName.RESEND else {}
        # The maximum age only sets when the age is checked again, so the smallest works for all.
        max_age_ms = min(self._queue.policy_of(n).max_age_ms for n in found)
        return Command(
            name=name, who=who, why=why, new_ids=new_ids, batch_id=self._new_id(), max_age_ms=max_age_ms
        )

    async def _apply(self, id: str, command: Command) -> AmendResult:
        plain_text(command.who, "who")
        plain_text(command.why, "why")
        if not is_storable(id):
            raise NotFound(f"there is no notification {id} for tenant {self.tenant!r}")
        result = await self._backend.amend(self.tenant, [id], command)
        if id in result.missing:
            raise NotFound(f"there is no notification {id} for tenant {self.tenant!r}")
        if id in result.refused:
            status = result.refused[id]
            hint = _hint(command.name, status, id)
            verb = "move" if command.name is CommandName.FAIL else command.name.value
            raise CommandRefused(f"{verb} is not possible: {id} is {status.value}. {hint}")
        return result

    async def _matching(
        self, name: CommandName, filter: Filter, step: int, as_of: datetime | None
    ) -> AsyncIterator[list[Notification]]:
        """Yields the notifications to which the command can be applied, page by page, the oldest first."""
        order = Command(name=name, who="")
        cursor: str | None = None
        while True:
            page = await self._backend.list(self.tenant, filter, limit=step, cursor=cursor, oldest_first=True)
            found = [
                n
                for n in page.items
                if n.mode is not Mode.SYNCHRONOUS
                and (as_of is None or n.updated_at <= as_of)
                and _allows(n, order)
            ]
            if found:
                yield found
            cursor = page.cursor
            if cursor is None:
                return
            await asyncio.sleep(0)

    async def why_stopped(self, name: CommandName, channels: Collection[Channel]) -> str | None:
        """Returns which breaker stops a bulk resend or retry on these channels now, or None."""
        if name not in (CommandName.RESEND, CommandName.RETRY):
            return None
        await self._breakers.refresh(at_once=True)
        blocked: set[str] = set()
        for channel in channels:
            route = [step.provider for step in self._roster.route(channel)]
            working = any(map(self._breakers.usable, route))
            # The breaker of an idle provider waits for a trial, which never comes while another one works.
            blocked.update(
                provider
                for provider in route
                if not self._breakers.usable(provider)
                and not (working and self._breakers.may_take_new(provider))
            )
        match sorted(blocked):
            case []:
                return None
            case [provider]:
                phase = self._breakers.phase(provider).value.replace("_", "-")
                return f"the breaker of {provider} is {phase}"
            case [*others, last]:
                return f"the breakers of {', '.join(others)} and {last} are not closed"
            case _:
                raise AssertionError

    def _new_id(self) -> str:
        return uuid7(self._clock.now_ms(), self._random_source.getrandbits(74))


def _allows(notification: Notification, command: Command) -> bool:
    after = after_command(
        command,
        notification.status,
        mode=notification.mode,
        resent=notification.resent_as is not None,
        accepted=not is_dead_request(notification),
    )
    return after is not None


def _address(notification: Notification) -> str:
    return address_of(notification.recipient, notification.channel)


def _hint(name: CommandName, status: Status, id: str) -> str:
    if status is Status.SENDING:
        return "An attempt is in flight; try again when it has ended."
    if name in (CommandName.RETRY, CommandName.RESEND):
        if status in SUCCESSFUL:
            return "It was sent; create a new notification to send it again."
        return "A synchronous send is never repeated, and a resent notification continues as its copy."
    return f"`homing explain {id}` shows what happened to it."
