"""Measures the lateness of scheduled notifications, with and without a backlog, and a backlog's memory.

Lateness is the time of arrival at the sink minus the time at which the notification was due.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from msgspec import Struct

from homing.benching import bare_loop
from homing.benching.delivery_rate import SETTLED_WITHIN_S, check_bare, check_sink
from homing.benching.report import Figure
from homing.benching.scratch_store import IN_FLIGHT, ScratchStore, open_scratch_store
from homing.benching.worker_processes import ProcessSlot, WorkerProcesses, run_async, run_homing_worker
from homing.benching.workload import BenchContext, BenchPlan, accept_all, build_request, check_store
from homing.core.send_request import SendRequest
from homing.library import Homing
from homing.settings import Settings

_FAR = timedelta(days=30)

_MB = 1024 * 1024

_BACKLOG_FROM = 100_000_000
"""Number of the first notification in the backlog, which is not due during the measurement."""

WORKER_MB, ACCEPTING_MB = 200.0, 200.0
"""Upper targets for the memory of a worker and of a process that calls `send_many`, in MB."""


class ArrivalRound(Struct, frozen=True, kw_only=True):
    """Result of one round: the lateness of each notification, and the worker's memory at the end."""

    late_ms: tuple[float, ...]
    rss_mb: float = 0.0

    def at(self, share: float) -> float:
        """Returns the quantile of the lateness in ms; `share` is 0.99 for p99."""
        return sorted(self.late_ms)[min(len(self.late_ms) - 1, int(share * len(self.late_ms)))]


class WaitingBacklog(Struct, frozen=True, kw_only=True):
    """Size of a waiting backlog, its bytes on disk per notification, and the memory used to accept it."""

    waiting: int
    bytes_each: float = 0.0
    accepting_mb: float = 0.0


def count_steps(plan: BenchPlan, postgres: bool) -> int:
    """Returns the number of steps, for the progress bar."""
    return 2 * (1 + 2 * _rounds(plan))


async def measure(stage: BenchContext) -> AsyncIterator[Figure]:
    """Measures lateness without a backlog, then with the plan's backlog."""
    alone, backlog = await _measure(stage, 0)
    for figure in _lateness(stage, "", alone):
        yield figure
    behind, backlog = await _measure(stage, stage.plan.backlog)
    for figure in _lateness(stage, f", {backlog.waiting:,} waiting", behind):
        yield figure
    for figure in _memory(stage, alone["Homing"], behind["Homing"], backlog):
        yield figure


def _rounds(plan: BenchPlan) -> int:
    return plan.rounds if plan.form == "long" else 1


async def _measure(
    stage: BenchContext, waiting: int
) -> tuple[Mapping[str, Sequence[ArrivalRound]], WaitingBacklog]:
    part = f"schedule, {waiting:,} waiting"
    stage.step(f"{part}: filling the store")
    async with _filled(stage, waiting) as (ours, backlog), _filled_bare(stage, waiting) as limit:
        found = await stage.run_alternating(
            part, {"bare loop": _bare_round(stage, limit), "Homing": _round(stage, ours)}, _rounds(stage.plan)
        )
        async with Homing(loaded_settings=ours.settings()) as homing:
            await check_store(homing, ours, delivered=stage.plan.due * _rounds(stage.plan), pending=waiting)
    return found, backlog


@asynccontextmanager
async def _filled(stage: BenchContext, waiting: int) -> AsyncIterator[tuple[ScratchStore, WaitingBacklog]]:
    async with open_scratch_store(stage.server) as place:
        async with Homing(loaded_settings=place.settings()):
            before = await place.size_bytes()
        if not waiting:
            yield place, WaitingBacklog(waiting=0)
            return
        with WorkerProcesses(_accept_backlog, (place.settings(), waiting, stage.sink.url), 1) as workers:
            workers.begin()
            await workers.finish(waiting, SETTLED_WITHIN_S + waiting / 1000)
            accepting_mb = workers.peak_memory_bytes / _MB
        await place.rested()
        each = (await place.size_bytes() - before) / waiting
        yield place, WaitingBacklog(waiting=waiting, bytes_each=each, accepting_mb=accepting_mb)


def _accept_backlog(post: ProcessSlot, what: tuple[Settings, int, str]) -> None:
    """Accepts the backlog in a separate process and records the peak memory of `send_many`."""
    settings, waiting, url = what

    async def work() -> None:
        await post.begin()
        async with Homing(loaded_settings=settings) as homing:
            accepted = await accept_all(homing, _far(waiting, url))
        post.note_memory()
        post.note(accepted, 0)
        await post.end()

    run_async(work())


def _far(waiting: int, url: str) -> Iterator[SendRequest]:
    began = datetime.now(UTC) + _FAR
    for number in range(waiting):
        yield build_request(_BACKLOG_FROM + number, url, send_at=began + timedelta(milliseconds=number))


@asynccontextmanager
async def _filled_bare(
    stage: BenchContext, waiting: int
) -> AsyncIterator[tuple[ScratchStore, bare_loop.BareQueue]]:
    async with open_scratch_store(stage.server) as place:
        rows = bare_loop.build_bare_queue(place.store)
        await rows.open()
        try:
            later = time.time() + _FAR.total_seconds()
            await rows.load((later + number / 1000 for number in range(waiting)), _BACKLOG_FROM)
            await place.rested()
            yield place, rows
        finally:
            await rows.close()


def _dues(plan: BenchPlan) -> list[float]:
    """Returns random due times in Unix seconds, with the same offsets from the start in every round."""
    rng, began = random.Random(7), time.time() + plan.lead_s
    return [round(began + rng.random() * plan.due_within_s, 3) for _ in range(plan.due)]


def _round(stage: BenchContext, place: ScratchStore) -> Callable[[], Awaitable[ArrivalRound]]:
    async def one() -> ArrivalRound:
        stage.sink.reset()
        settings = place.settings()
        async with Homing(loaded_settings=settings) as homing:
            with WorkerProcesses(run_homing_worker, settings, 1) as workers:
                workers.begin()
                dues = _dues(stage.plan)
                moments = (datetime.fromtimestamp(due, UTC) for due in dues)
                url = stage.sink.url
                await accept_all(homing, (build_request(n, url, send_at=at) for n, at in enumerate(moments)))
                await workers.finish(len(dues), SETTLED_WITHIN_S)
                memory = workers.rss_bytes
        return _arrivals(stage, dues, memory[0] / _MB if memory else 0.0)

    return one


def _bare_round(
    stage: BenchContext, limit: tuple[ScratchStore, bare_loop.BareQueue]
) -> Callable[[], Awaitable[ArrivalRound]]:
    place, rows = limit
    sent = 0

    async def one() -> ArrivalRound:
        nonlocal sent
        stage.sink.reset()
        with WorkerProcesses(
            bare_loop.run_bare_worker, bare_loop.build_bare_task(place, stage.sink.url, IN_FLIGHT), 1
        ) as workers:
            workers.begin()
            dues = _dues(stage.plan)
            await rows.load(dues, sent)
            await workers.finish(len(dues), SETTLED_WITHIN_S)
        first, sent = sent, sent + len(dues)
        check_bare(await rows.sent(), sent)
        return _arrivals(stage, dues, 0.0, first)

    return one


def _arrivals(stage: BenchContext, dues: Sequence[float], rss_mb: float, first: int = 0) -> ArrivalRound:
    check_sink(stage.sink, len(dues))
    arrived = stage.sink.arrivals()
    late_ms = tuple(1000 * (arrived[first + number] - due) for number, due in enumerate(dues))
    return ArrivalRound(late_ms=late_ms, rss_mb=rss_mb)


def _lateness(
    stage: BenchContext, where: str, found: Mapping[str, Sequence[ArrivalRound]]
) -> Iterator[Figure]:
    for quantile, share in (("p50", 0.5), ("p99", 0.99)):
        for who, rounds in found.items():
            ours = who == "Homing"
            yield Figure(
                part="schedule",
                name=f"{who}, {quantile} late{where}",
                store=stage.store,
                unit="ms",
                rounds=tuple(one.at(share) for one in rounds),
                beside=f"bare loop, {quantile} late{where}" if ours else "",
                at_most=3.0 if ours and quantile == "p99" and where else None,
            )


def _memory(
    stage: BenchContext,
    alone: Sequence[ArrivalRound],
    behind: Sequence[ArrivalRound],
    backlog: WaitingBacklog,
) -> Iterator[Figure]:
    def figure(name: str, unit: str, value: float, at_most: float | None = None) -> Figure:
        return Figure(
            part="memory", name=name, store=stage.store, unit=unit, rounds=(value,), at_most=at_most
        )

    waiting = f"{backlog.waiting:,} waiting"
    without, with_ = (statistics.median(one.rss_mb for one in rounds) for rounds in (alone, behind))
    if without and with_:
        yield figure("worker, nothing waiting", "MB", without)
        yield figure(f"worker, {waiting}", "MB", with_, WORKER_MB)
        each = max(0.0, (with_ - without) * _MB / backlog.waiting)
        yield figure("worker, per waiting notification", "bytes", each)
    yield figure(f"send_many of {backlog.waiting:,}, peak", "MB", backlog.accepting_mb, ACCEPTING_MB)
    yield figure("disk, per waiting notification", "bytes", backlog.bytes_each)
