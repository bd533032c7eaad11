"""The state of the queue before a run of `process`, of one tenant or of all."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from homing.core.lifecycle.states import WAITING
from homing.core.notifications import Notification, Status
from homing.core.ports.stores import Backend, Inbox
from homing.core.statistics import count_statuses
from homing.engine.operations.breaker_holds import BreakerHold
from homing.engine.operations.statistics import average_attempts


class QueueOverview(Struct, frozen=True, kw_only=True):
    """What waits in the queue, and what a run would find."""

    pending: int
    """Number of notifications that wait for their first or next attempt."""
    processing: int
    """Number of notifications whose attempt is in flight."""
    failed: int
    """Number of dead letters."""
    in_backoff: int
    """Number of notifications that wait for a retry that is not due yet."""
    average_attempts: float
    """Average number of attempts of those that are or were retried. 0 if there are none."""
    due: tuple[Notification, ...]
    """Notifications that are due now, the earliest first, at most as many as the run delivers. If they are
    large, only as many as fit on one page."""
    due_count: int
    """Number of notifications that are due now, at most as many as the run delivers."""
    in_inbox: int = 0
    """Number of requests in the SQL inbox, which a run accepts first."""
    left_out: dict[str, Status] = field(default_factory=dict)
    """Id → status of the chosen notifications that do not wait for an attempt."""
    held: tuple[BreakerHold, ...] = ()
    """Breakers that hold some of `due` back."""

    @property
    def found(self) -> int:
        """Number of notifications and requests that a run finds."""
        return self.due_count + self.in_inbox


async def read_queue_overview(
    backend: Backend, tenant: str | None, limit: int, chosen: Sequence[Notification] | None = None
) -> QueueOverview:
    """Returns the state of the queue. If `tenant` is None, that of all tenants together.

    With `chosen`, the run delivers only these, also those that are not due yet.
    """
    tallies = await backend.tallies(tenant)
    due = await backend.count_due(tenant)
    if chosen is None:
        ready = (await backend.waiting(tenant, limit=limit, ready=True)).items
    else:
        ready = tuple(n for n in chosen if n.status in WAITING)[:limit]
    return QueueOverview(
        pending=count_statuses(tallies, *WAITING),
        processing=count_statuses(tallies, Status.SENDING),
        failed=count_statuses(tallies, Status.FAILED),
        in_backoff=max(0, count_statuses(tallies, Status.RETRYING) - due.get(Status.RETRYING, 0)),
        average_attempts=average_attempts(tallies),
        due=ready,
        due_count=min(limit, sum(due.values())) if chosen is None else len(ready),
        in_inbox=await backend.count_inbox(tenant) if isinstance(backend, Inbox) and chosen is None else 0,
        left_out=find_left_out(chosen or ()),
    )


def find_left_out(chosen: Sequence[Notification]) -> dict[str, Status]:
    """Returns id and status of the chosen notifications that do not wait for an attempt."""
    return {n.id: n.status for n in chosen if n.status not in WAITING}
