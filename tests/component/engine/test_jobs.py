"""Bulk commands as background jobs: progress, stopping, lost processes, and nothing done twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from homing import CommandName, CommandRefused, Filter, Homing, InvalidRequest, NotFound, Status
from homing.core.errors import StoreError, StoreUnavailable
from homing.core.lifecycle.jobs import JOB_LEASE_MS, Job, JobStatus
from homing.core.notifications import Page
from homing.core.routing.breaker import Phase
from homing.rehearsal.virtual_time import TASK_GROUP, VirtualLoop
from support.engine_harness import HOUR, EngineHarness, K, TimedProvider, mail, seconds, serving, status

DEAD = Filter(statuses=(Status.FAILED,), acknowledged=False)


async def dead(
    harness: EngineHarness, number: int, **settings: Any
) -> tuple[Homing, TimedProvider, list[str]]:
    """Opens an engine with dead letters, and a provider that works again."""
    provider = TimedProvider("mail", usual=K.BAD_CONTENT)
    engine = await harness.open({"mail": serving("mail", provider)}, **settings)
    ids = [await mail(engine, to=f"p{n}@example.org") for n in range(number)]
    await seconds(3)
    provider.usual = K.ACCEPTED
    provider.times.clear()
    return engine, provider, ids


async def resend(engine: Homing, rate: float | None = None, **more: Any) -> Job:
    return await engine.jobs.start(
        "default", CommandName.RESEND, DEAD, who="ada", why="mended", rate_per_second=rate, **more
    )


async def read(engine: Homing, job: Job) -> Job:
    return await engine.jobs.get("default", job.id)


async def test_a_job_runs_in_the_background_and_reports_its_progress(harness: EngineHarness) -> None:
    engine, provider, ids = await dead(harness, 30)
    job = await resend(engine, rate=10)
    assert (job.status, job.expected, job.done) == (JobStatus.RUNNING, 30, 0)
    await seconds(1.5)
    assert 10 <= (await read(engine, job)).done < 30
    await seconds(3)
    found = await read(engine, job)
    assert (found.status, found.matched, found.done, found.refused) == (JobStatus.DONE, 30, 30, 0)
    assert (found.who, found.why, found.stopped) == ("ada", "mended", None)
    assert found.ended_at is not None
    assert found.ended_at > found.created_at
    assert len(provider.times) == 30
    assert (await engine.get(ids[0])).acknowledged_by == "ada"


async def test_a_job_begins_with_the_oldest(harness: EngineHarness) -> None:
    engine, _, ids = await dead(harness, 30)
    await resend(engine, rate=10)
    await seconds(0.5)
    changed = [id for id in ids if (await engine.get(id)).resent_as is not None]
    assert sorted(changed) == sorted(ids)[:10]


async def test_a_resend_never_resends_what_it_has_created(harness: EngineHarness) -> None:
    """Every copy becomes a dead letter at once, while the job still runs."""
    engine, provider, _ = await dead(harness, 30)
    provider.usual = K.BAD_CONTENT
    job = await resend(engine, rate=10)
    await seconds(60)
    assert ((await read(engine, job)).status, (await read(engine, job)).done) == (JobStatus.DONE, 30)
    provider.sent.clear()
    async for _ in engine.bulk(CommandName.RESEND, DEAD, who="ada", rate_per_second=10):
        pass
    await seconds(60)
    assert len(provider.sent) == 30, "one resend of each of the 30 dead letters that were left"


async def test_a_resend_that_is_begun_again_continues_and_sends_nothing_twice(harness: EngineHarness) -> None:
    engine, provider, _ = await dead(harness, 30)
    provider.usual = K.BAD_CONTENT
    provider.sent.clear()
    first = await engine.jobs.start_or_resume(
        "default", CommandName.RESEND, DEAD, who="ada", rate_per_second=5
    )
    for _ in range(2):
        await seconds(2.5)
        await engine.jobs.close()
        again = await engine.jobs.start_or_resume(
            "default", CommandName.RESEND, DEAD, who="bob", rate_per_second=5
        )
        assert again.id == first.id
    await seconds(30)
    job = await read(engine, first)
    assert (job.status, job.done) == (JobStatus.DONE, 30)
    assert Counter(delivery.address for delivery in provider.sent) == Counter(
        f"p{n}@example.org" for n in range(30)
    )
    new = await engine.jobs.start_or_resume("default", CommandName.RESEND, DEAD, who="ada")
    assert new.id != first.id, "a job that is complete is not continued"
    other = await engine.jobs.start_or_resume("default", CommandName.ACKNOWLEDGE, DEAD, who="ada")
    assert other.id not in (first.id, new.id)


async def test_a_continued_job_has_the_new_author_reason_and_rate(harness: EngineHarness) -> None:
    engine, _, ids = await dead(harness, 10)
    first = await resend(engine, rate=1)
    await seconds(2.5)
    await engine.jobs.close()
    again = await engine.jobs.start_or_resume("default", CommandName.RESEND, DEAD, who="bob", why="go on")
    assert again.id == first.id
    await seconds(5)
    job = await read(engine, first)
    assert (job.status, job.done) == (JobStatus.DONE, 10)
    assert (job.who, job.why, job.rate_per_second) == ("bob", "go on", None)
    authors = [(await engine.get(id)).acknowledged_by for id in sorted(ids)]
    assert (authors[0], authors[-1]) == ("ada", "bob")


async def test_only_a_recent_job_is_continued_so_that_later_dead_letters_are_included(
    poll_rarely: None, harness: EngineHarness
) -> None:
    engine, provider, ids = await dead(harness, 10)
    first = await resend(engine, rate=1)
    await seconds(2.5)
    await engine.jobs.close()
    assert await engine.jobs.to_continue("default", CommandName.RESEND, DEAD) is not None
    provider.usual = K.BAD_CONTENT
    late = await mail(engine, to="late@example.org")
    await seconds(2 * HOUR)
    provider.usual = K.ACCEPTED
    assert await engine.jobs.to_continue("default", CommandName.RESEND, DEAD) is None
    new = await engine.jobs.start_or_resume("default", CommandName.RESEND, DEAD, who="bob")
    assert new.id != first.id
    await seconds(5)
    assert {(await engine.get(id)).resent_as is not None for id in (*ids, late)} == {True}


async def test_a_job_never_finds_what_it_has_changed_in_its_first_millisecond(harness: EngineHarness) -> None:
    """A resumed job would retry such a notification again."""
    engine, _, ids = await dead(harness, 1)
    job = await engine.jobs.start("default", CommandName.RETRY, DEAD, who="ada")
    await seconds(1)
    [command] = [one for one in (await engine.history(ids[0])).causes if one.kind == "command"]
    assert command.at > job.created_at


async def test_a_resumed_job_takes_a_new_rate_or_keeps_its_own(harness: EngineHarness) -> None:
    engine, _, _ = await dead(harness, 10)
    job = await resend(engine, rate=0.5)
    for rate, expected in ((None, 0.5), (2.0, 2.0)):
        await seconds(1)
        await engine.jobs.close()
        assert (
            await engine.jobs.resume("default", job.id, who="ada", rate_per_second=rate)
        ).rate_per_second == (expected)
    with pytest.raises(InvalidRequest, match="ratePerSecond"):
        await engine.jobs.resume("default", job.id, who="ada", rate_per_second=0)


async def test_any_process_sees_a_job_and_can_stop_it_at_its_next_step(harness: EngineHarness) -> None:
    engine, provider, _ = await dead(harness, 30)
    other = await harness.open({"mail": serving("mail", TimedProvider("mail"))}, working=False)
    job = await resend(engine, rate=5)
    await seconds(0.5)
    asked = await other.jobs.stop("default", job.id, who="bob")
    assert (asked.status, asked.stop_requested_by) == (JobStatus.RUNNING, "bob")
    await seconds(3)
    found = await read(other, job)
    assert (found.status, found.stopped) == (JobStatus.STOPPED, "stopped by bob")
    assert found.done == len(provider.times) < 30
    assert await other.jobs.stop("default", job.id, who="cy") == found


async def test_a_stopped_job_continues_where_it_was(harness: EngineHarness) -> None:
    engine, provider, _ = await dead(harness, 30)
    other = await harness.open({"mail": serving("mail", TimedProvider("mail"))}, working=False)
    job = await resend(engine, rate=5)
    await seconds(0.5)
    await engine.jobs.stop("default", job.id, who="bob")
    await seconds(3)
    again = await other.jobs.resume("default", job.id, who="cy")
    assert (again.status, again.worker, again.stopped) == (JobStatus.RUNNING, "w2", None)
    await seconds(10)
    found = await read(engine, job)
    assert (found.status, found.done, len(provider.times)) == (JobStatus.DONE, 30, 30)
    with pytest.raises(CommandRefused, match="is done"):
        await engine.jobs.resume("default", job.id, who="cy")


async def test_a_running_job_is_not_resumed_by_any_process(harness: EngineHarness) -> None:
    engine, provider, _ = await dead(harness, 20)
    other = await harness.open({"mail": serving("mail", TimedProvider("mail"))}, working=False)
    job = await resend(engine, rate=5)
    await seconds(0.5)
    for asked in (engine, other):
        with pytest.raises(CommandRefused, match="is running"):
            await asked.jobs.resume("default", job.id, who="cy")
    with pytest.raises(NotFound):
        await engine.jobs.resume("acme", job.id, who="eve")
    await seconds(10)
    found = await read(engine, job)
    assert (found.status, found.done, found.matched) == (JobStatus.DONE, 20, 20)
    assert len(provider.times) == 20


async def test_a_job_of_a_dead_process_is_interrupted_and_does_nothing_twice(harness: EngineHarness) -> None:
    """Retried notifications fail again meanwhile. They match the filter again, and are left alone."""
    engine, provider, ids = await dead(harness, 20)
    provider.usual = K.BAD_CONTENT
    job = await engine.jobs.start("default", CommandName.RETRY, DEAD, who="ada", rate_per_second=5)
    await seconds(1.5)
    done = (await read(engine, job)).done
    assert 0 < done < 20
    await engine.close()
    other = await harness.open({"mail": serving("mail", provider)})
    found = await other.jobs.get("default", job.id)
    assert (found.status, found.stopped) == (JobStatus.INTERRUPTED, "its process ended")
    await other.jobs.resume("default", job.id, who="bob")
    await seconds(30)
    assert (await read(other, job)).status is JobStatus.DONE
    attempts = [(await other.get(id)).attempt_count for id in ids]
    assert attempts == [2] * 20


async def test_a_job_without_a_sign_of_life_is_interrupted(harness: EngineHarness) -> None:
    engine, _, _ = await dead(harness, 10)
    engine.jobs._begin = lambda run: None  # type: ignore[method-assign]  # killed right after it took it
    job = await resend(engine, rate=0.1)
    other = await harness.open({"mail": serving("mail", TimedProvider("mail"))}, working=False)
    assert (await read(other, job)).status is JobStatus.RUNNING
    await seconds(JOB_LEASE_MS / 1000 + 10)
    assert (await read(other, job)).status is JobStatus.INTERRUPTED
    stopped = await other.jobs.stop("default", job.id, who="bob")
    assert (stopped.status, stopped.stopped) == (JobStatus.STOPPED, "stopped by bob")


async def test_a_suspended_process_leaves_a_job_to_the_process_that_has_resumed_it(
    harness: EngineHarness,
) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    engine, provider, _ = await dead(harness, 30)
    joined = TASK_GROUP.set("suspended")
    job = await resend(engine, rate=0.5)
    TASK_GROUP.reset(joined)
    await seconds(5)
    loop.freeze("suspended")
    await seconds(JOB_LEASE_MS / 1000 + 10)
    other = await harness.open({"mail": serving("mail", provider)}, working=False)
    await other.jobs.resume("default", job.id, who="bob")
    loop.thaw("suspended")
    for _ in range(20):
        await seconds(5)
        assert (await read(engine, job)).worker == "w2"
    found = await read(engine, job)
    assert (found.status, found.done) == (JobStatus.DONE, 30)
    assert len(provider.times) == 30


async def test_a_slow_job_gives_signs_of_life(harness: EngineHarness) -> None:
    engine, _, _ = await dead(harness, 10)
    job = await resend(engine, rate=0.1)
    for _ in range(8):
        await seconds(10)
        assert (await read(engine, job)).status is JobStatus.RUNNING
    await seconds(30)
    assert (await read(engine, job)).done == 10


async def test_an_opening_breaker_stops_a_job_with_that_reason(harness: EngineHarness) -> None:
    engine, _, _ = await dead(harness, 30)
    job = await resend(engine, rate=5)
    await seconds(1)
    await engine.force_breaker("mail", Phase.OPEN, who="ada")
    await seconds(5)
    found = await read(engine, job)
    assert (found.status, found.stopped) == (JobStatus.STOPPED, "the breaker of mail is open")
    assert found.done < 30


async def test_a_job_waits_for_an_unavailable_store(harness: EngineHarness) -> None:
    engine, _, _ = await dead(harness, 30)
    listing = harness.store.list
    fails = 3

    async def stumbling(*args: Any, **kwargs: Any) -> Page:
        nonlocal fails
        fails -= 1
        if fails >= 0:
            raise StoreUnavailable
        return await listing(*args, **kwargs)

    harness.store.list = stumbling  # type: ignore[method-assign]
    job = await resend(engine)
    await seconds(60)
    found = await read(engine, job)
    assert (found.status, found.done) == (JobStatus.DONE, 30)


async def test_a_permanent_store_error_fails_the_job_which_can_be_resumed(harness: EngineHarness) -> None:
    engine, _, _ = await dead(harness, 10)
    listing = harness.store.list

    async def refusing(*args: Any, **kwargs: Any) -> Page:
        raise StoreError("homing.db: string or blob too big")

    harness.store.list = refusing  # type: ignore[method-assign]
    job = await resend(engine)
    await seconds(60)
    found = await read(engine, job)
    assert (found.status, found.stopped) == (JobStatus.FAILED, "the store failed; see the log")
    harness.store.list = listing  # type: ignore[method-assign]
    await engine.jobs.resume("default", job.id, who="ada")
    await seconds(10)
    assert (await read(engine, job)).status is JobStatus.DONE


async def test_a_tenant_has_at_most_five_jobs_and_sees_only_its_own(harness: EngineHarness) -> None:
    engine, _, _ = await dead(harness, 10)
    jobs = []
    for _ in range(5):
        jobs.append(await resend(engine, rate=0.1))
        await seconds(0.1)
    with pytest.raises(CommandRefused, match="5 jobs are running"):
        await resend(engine)
    with pytest.raises(NotFound):
        await engine.jobs.get("other", jobs[0].id)
    assert await engine.jobs.list("other") == ()
    assert (await engine.jobs.start("other", CommandName.RESEND, DEAD, who="eve")).status is JobStatus.RUNNING
    await seconds(200)
    assert [job.id for job in await engine.jobs.list("default")] == [job.id for job in reversed(jobs)]
    assert (await resend(engine)).status is JobStatus.RUNNING


async def test_at_most_five_jobs_start_even_if_several_processes_start_them_at_once(
    harness: EngineHarness,
) -> None:
    engine, _, _ = await dead(harness, 10)
    other = await harness.open({"mail": serving("mail", TimedProvider("mail"))}, working=False)
    asked = [resend(one, rate=0.1) for one in (engine, other) * 6]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(isinstance(one, Job) for one in answers) == 5
    assert all(isinstance(one, (Job, CommandRefused)) for one in answers)
    assert len(await engine.jobs.list("default")) == 5


async def test_an_impossible_bulk_command_is_refused_at_once(harness: EngineHarness) -> None:
    engine, _, (id,) = await dead(harness, 1)
    with pytest.raises(InvalidRequest, match="command: is resolve"):
        await engine.jobs.start("default", CommandName.RESOLVE, DEAD, who="ada")
    with pytest.raises(InvalidRequest, match="ratePerSecond: is 0"):
        await resend(engine, rate=0)
    assert await engine.jobs.list("default") == ()
    assert await status(engine, id) is Status.FAILED


async def test_old_jobs_are_deleted(harness: EngineHarness) -> None:
    engine, _, _ = await dead(harness, 1)
    for _ in range(105):
        await resend(engine)
        await seconds(0.1)
    assert len(await engine.jobs.list("default", limit=500)) == 100
