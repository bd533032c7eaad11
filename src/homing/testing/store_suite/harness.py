"""The `Harness` that a store's test file must provide, and the helper functions of the suite."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Protocol

from homing.core.lifecycle.claims import Acceptance, Claim, NewNotification
from homing.core.lifecycle.commands import Command, CommandName
from homing.core.lifecycle.outcomes import Settlement
from homing.core.lifecycle.views import optional_moment
from homing.core.notifications import DEFAULT_TENANT, Filter, Notification, Status
from homing.core.ports.stores import Backend, SinkRegistration
from homing.core.statistics import Tally
from homing.testing.builders import (
    HOUR_MS,
    MINUTE_MS,
    a_claim_request,
    a_notification,
    a_settlement,
    a_submission,
    an_attempt,
    an_id,
    dead,
    in_doubt,
    postponed,
    retry_in,
    sent,
)


class Harness(Protocol):
    """An empty store whose clock the suite can advance, and further instances over the same data.

    Real time may pass between calls, because no test depends on a difference of a few seconds. So the real
    clock plus an adjustable offset is enough.
    """

    @property
    def store(self) -> Backend:
        """Returns the store: opened, migrated and empty."""

    async def advance(self, duration_ms: int) -> None:
        """Advances the clock of the store and of all instances that `second` returned."""

    async def second(self) -> Backend:
        """Returns another open instance over the same data, as a second process would have.

        The harness closes the instance after the test.
        """


MARGIN_MS = 30_000
"""Tolerance for times: longer than any test takes, shorter than any difference that a test checks."""


async def accept(
    store: Backend, *notifications: NewNotification, tenant: str = DEFAULT_TENANT, batch_id: str | None = None
) -> Acceptance:
    """Accepts one submission and returns the store's answer."""
    [answer] = await store.accept([a_submission(*notifications, tenant=tenant, batch_id=batch_id)])
    return answer


async def accept_one(
    store: Backend, notification: NewNotification | None = None, *, tenant: str = DEFAULT_TENANT
) -> str:
    """Accepts one notification and returns its id."""
    answer = await accept(store, notification or a_notification(), tenant=tenant)
    [id] = answer.ids
    return id


async def claim_all(store: Backend, *lanes: str, worker: str = "w-1") -> tuple[Claim, ...]:
    """Claims all due rows of these lanes."""
    return (await store.claim(a_claim_request(*lanes, worker=worker))).claims


async def claim_one(store: Backend, *lanes: str) -> Claim:
    """Claims the due rows of these lanes, and fails unless there is exactly one."""
    [claim] = await claim_all(store, *lanes)
    return claim


async def accept_and_claim(
    store: Backend, notification: NewNotification | None = None, *, tenant: str = DEFAULT_TENANT
) -> Claim:
    """Accepts one notification and returns its claim. Other due rows of its lane are claimed too."""
    new = notification or a_notification()
    await accept_one(store, new, tenant=tenant)
    claims = await claim_all(store, new.lane)
    [claim] = [claim for claim in claims if claim.id == new.id]
    return claim


async def accept_and_send(
    store: Backend,
    message_id: str,
    notification: NewNotification | None = None,
    *,
    tenant: str = DEFAULT_TENANT,
    bounce_always: bool | None = False,
    bounce_ms: tuple[int, int] | None = (MINUTE_MS, MINUTE_MS),
) -> str:
    """Accepts a notification, settles it as `sent` with this provider message id, and returns its own id."""
    claim = await accept_and_claim(store, notification, tenant=tenant)
    settlement = sent(claim, message_id, bounce_always=bounce_always, bounce_ms=bounce_ms)
    result = await store.settle([settlement])
    assert result.applied == (claim.id,)
    return claim.id


async def make_in_doubt(store: Backend, message_id: str | None = None) -> str:
    """Accepts a notification, settles it as `in_doubt`, and returns its id."""
    claim = await accept_and_claim(store)
    await store.settle([in_doubt(claim, message_id)])
    return claim.id


async def get_notification(store: Backend, id: str, tenant: str = DEFAULT_TENANT) -> Notification:
    """Returns the notification, and fails if it does not exist."""
    history = await store.get(tenant, id)
    assert history is not None, f"{id} does not exist"
    return history.notification


async def status_of(store: Backend, id: str, tenant: str = DEFAULT_TENANT) -> Status:
    return (await get_notification(store, id, tenant)).status


async def list_all(
    store: Backend, tenant: str = DEFAULT_TENANT, filter: Filter | None = None
) -> list[Notification]:
    """Returns all notifications that match the filter, reading page by page."""
    items: list[Notification] = []
    cursor: str | None = None
    while True:
        page = await store.list(tenant, filter or Filter(), limit=200, cursor=cursor)
        items.extend(page.items)
        cursor = page.cursor
        if cursor is None:
            return items


async def count_by_status(store: Backend, tenant: str | None = DEFAULT_TENANT) -> dict[Status, int]:
    """Returns the number of notifications per status."""
    numbers: dict[Status, int] = {}
    for tally in await store.tallies(tenant):
        if tally.count:
            numbers[tally.status] = numbers.get(tally.status, 0) + tally.count
    return numbers


def tally_cells(tallies: Sequence[Tally]) -> dict[tuple[Status, int], tuple[int, int]]:
    """Returns (status, attempts) → (count, purged), without the empty entries."""
    return {(t.status, t.attempts): (t.count, t.purged) for t in tallies if t.count or t.purged}


def close_to(at: datetime | int | None, expected: int) -> bool:
    """Returns True if the time is within `MARGIN_MS` of the expected one, which allows for slow machines."""
    if at is None:
        return False
    moment = optional_moment(at) if isinstance(at, int) else at
    return abs(moment - optional_moment(expected)) < timedelta(milliseconds=MARGIN_MS)


def a_command(name: CommandName, ids: Sequence[str] = ()) -> Command:
    """Returns a command with every field that any command requires.

    A `resend` gets a new id for each of `ids`.
    """
    return Command(
        name=name,
        who="ada",
        why="because",
        delay_ms=HOUR_MS,
        resolution=Status.SENT,
        new_ids={id: an_id() for id in ids} if name is CommandName.RESEND else {},
        batch_id="b-resent",
    )


async def bring_to(store: Backend, status: Status, *, type: str = "order_confirmed") -> str:
    """Accepts a notification, brings it to this status and returns its id.

    A `pending` or `retrying` notification is then due in an hour.
    """
    now = await store.now_ms()
    if status is Status.PENDING:
        return await accept_one(store, a_notification(type=type, send_at=now + HOUR_MS))
    claim = await accept_and_claim(store, a_notification(type=type))
    if status is not Status.SENDING:
        await store.settle([_leading_to(claim, status)])
    if status is Status.CANCELLED:
        await store.amend("default", [claim.id], a_command(CommandName.CANCEL))
    assert await status_of(store, claim.id) is status
    return claim.id


def _leading_to(claim: Claim, status: Status) -> Settlement:
    match status:
        case Status.SENT:
            return sent(claim)
        case Status.RETRYING:
            return retry_in(claim, HOUR_MS)
        case Status.FAILED:
            return dead(claim)
        case Status.IN_DOUBT:
            return in_doubt(claim)
        case Status.CANCELLED:
            return postponed(claim, HOUR_MS)
        case _:
            return a_settlement(claim, status, attempt=an_attempt(claim))


async def subscribe(store: Backend, *events: str, sink: str = "sink") -> None:
    """Registers a sink that gets these events."""
    await store.register_sink(SinkRegistration(name=sink, kind="test", events=frozenset(events)))
