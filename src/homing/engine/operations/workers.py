"""The workers of all processes, and work that is overdue because none of them is alive."""

from __future__ import annotations

from homing.core.durations import format_duration
from homing.core.ports.stores import Backend
from homing.core.system_status import WorkerState, WorkerStatus
from homing.core.times import moment

OVERDUE_AFTER_MS = 60_000
"""Work that has been due for longer than this counts as overdue."""


PROCESS_SUFFIX = ":process"
"""End of the name under which the runs of `homing process` on a host send their heartbeats."""


async def list_workers(backend: Backend) -> tuple[WorkerStatus, ...]:
    """Returns the workers of all processes, by name. Those that died are listed for a day."""
    now, workers = await backend.now_ms(), await backend.workers()
    return tuple(
        WorkerStatus(
            name=worker.name,
            state=WorkerState.DEAD
            if not worker.is_live(now)
            else WorkerState.DRAINING
            if worker.draining
            else WorkerState.LIVE,
            version=worker.version,
            started_at=moment(worker.started_at),
            seen_at=moment(worker.seen_at),
            lanes=worker.lanes,
            providers=worker.providers,
        )
        for worker in workers
    )


async def count_live_workers(backend: Backend) -> int:
    """Returns the number of workers that are alive and claim work."""
    return sum(worker.state is WorkerState.LIVE for worker in await list_workers(backend))


async def find_overdue_ms(backend: Backend, *, enough_ms: int | None = None) -> int:
    """Returns how long the oldest due notification of any tenant has been due, or 0 if none is due.

    Stops looking once one has been due for longer than `enough_ms`.
    """
    now, worst = moment(await backend.now_ms()), 0
    for tenant in await backend.tenants():
        for first in (await backend.waiting(tenant, limit=1, ready=True)).items:
            if first.next_retry_at is not None:
                worst = max(worst, int((now - first.next_retry_at).total_seconds() * 1000))
        if enough_ms is not None and worst > enough_ms:
            break
    return worst


async def find_unattended_ms(backend: Backend, *, enough_ms: int) -> int:
    """Returns how long some work has been due without a live worker. 0 if a worker is alive.

    It is not longer than the time since the last heartbeat, which a run of `homing process` sends too: that
    run may have left work that a breaker held back. Stops looking for overdue work beyond `enough_ms`.
    """
    workers = await list_workers(backend)
    if any(worker.state is WorkerState.LIVE for worker in workers):
        return 0
    overdue_ms, now = await find_overdue_ms(backend, enough_ms=enough_ms), moment(await backend.now_ms())
    silent = (now - worker.seen_at for worker in workers if worker.state is WorkerState.DEAD)
    return min((overdue_ms, *(int(one.total_seconds() * 1000) for one in silent)))


def describe_unattended(unattended_ms: int) -> str:
    """Returns a sentence about work that is overdue while no worker is live."""
    return f"work is {format_duration(unattended_ms)} overdue and no worker is live: `homing workers`"
