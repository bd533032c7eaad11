"""Source 000's Notification Service as its user runs it: one settings file, hours in virtual time.

The retries of a failed push by priority, its end as a dead letter, and the words of its diagrams. What an
inactive device means is in tests/component/engine/test_pre_send_checks.py, and the formula of the delays in
test_operations.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from prometheus_client.parser import text_string_to_metric_families

from homing import Homing, Reason, Status
from homing.core.lifecycle.events import Event
from homing.core.notifications import Filter, History, Notification
from homing.rehearsal.virtual_time import VirtualLoop
from homing.telemetry.metrics import Metrics
from homing.testing import VirtualClock, run_virtual
from support.cli_driver import Cli

SETTINGS = """\
store = "{store}"
preset = "priority"
[providers.fcm]
kind = "scripted"
channels = ["push"]
breaker = "off"
script = {script}
usual = "{usual}"
"""
"""The source has no circuit breaker, so its settings turn it off."""

DAY_MS = 86_400_000

SECONDS = {"critical": (10, 10, 300), "high": (8, 30, 900), "medium": (5, 120, 3_600), "low": (3, 300, 7_200)}
"""Priority → maximum number of retries, base and cap of the delay in seconds, as in the source's table."""


class Life(NamedTuple):
    """What became of one notification."""

    after_first: Notification
    """The notification a second after it was sent."""
    waiting: tuple[Notification, ...]
    history: History
    dead_letters: tuple[Notification, ...]
    metrics: dict[tuple[str, str], float]
    """(name, value of the label `status` or "") → value of a metric of the notification's queue."""
    events: list[Event]


def settings(folder: Path, *, script: str = "[]", usual: str = "transient", store: str = "memory:") -> Path:
    file = folder / "homing.toml"
    file.write_text(SETTINGS.format(store=store, script=script, usual=usual))
    return file


def live(file: Path, priority: str, meanwhile: Callable[[Homing, str], Any] | None = None) -> Life:
    """Sends a push in virtual time, and waits until it has ended."""
    events: list[Event] = []

    async def scenario(loop: VirtualLoop) -> Life:
        metrics = Metrics()
        clock = VirtualClock(loop)
        async with Homing(
            config_file=file, worker=True, clock=clock, observers=[metrics], on_event=events.append
        ) as homing:
            metrics.watch(homing)
            sent = await homing.send(
                {"deviceToken": "token-1"}, channel="push", priority=priority, title="Gate changed"
            )
            await asyncio.sleep(1)
            after_first, waiting = await homing.get(sent.id), await homing.waiting()
            if meanwhile is not None:
                await meanwhile(homing, sent.id)
            await homing.wait(sent.id, timeout_ms=DAY_MS)
            await asyncio.sleep(1)
            dead = (await homing.list(Filter(statuses=("failed",)))).items  # type: ignore[arg-type]
            history = await homing.history(sent.id)
            return Life(after_first, waiting, history, dead, numbers(await metrics.page()), events)

    return run_virtual(scenario)


def numbers(page: bytes) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            key = (sample.name, sample.labels.get("status", ""))
            found[key] = found.get(key, 0.0) + sample.value
    return found


@pytest.mark.source(
    "000",
    "9-17",
    "24-25",
    "38",
    "41-42",
    "57",
    "61",
    "65",
    "67",
    "70-72",
    "77",
    "86",
    "90-91",
    "128-137",
    "139",
)
@pytest.mark.parametrize("priority", SECONDS)
def test_a_push_is_retried_by_its_priority_and_then_a_dead_letter(priority: str, tmp_path: Path) -> None:
    retries, base, cap = SECONDS[priority]
    life = live(settings(tmp_path), priority)
    assert (life.after_first.status, life.after_first.attempt_count) == (Status.RETRYING, 1)
    assert [one.id for one in life.waiting] == [life.after_first.id]
    done, attempts = life.history.notification, life.history.attempts
    assert [one.number for one in attempts] == list(range(1, retries + 2)), "each failure is on record"
    assert {one.outcome.value for one in attempts} == {"transient"}
    for number, (one, next_one) in enumerate(pairwise(attempts), 1):
        delay = min(base * 2 ** (number - 1), cap)
        waited = (next_one.started_at - one.ended_at).total_seconds()
        assert delay <= waited <= 1.3 * delay + 1, "exponential, capped, then 0 to 30 % of jitter"
    assert (done.status, done.reason) == (Status.FAILED, Reason.RETRIES_EXHAUSTED)
    assert [one.id for one in life.dead_letters] == [done.id]
    assert done.next_retry_at is None, "no more retries"
    (failed,) = [event.payload for event in life.events if event.name == "NotificationFailed"]
    assert (failed["notificationId"], failed["attemptCount"]) == (done.id, retries + 1)
    metrics = life.metrics
    assert metrics["retries_scheduled_total", ""] == retries
    assert metrics["retries_executed_total", "failed"] == retries
    assert (metrics["retries_exhausted_total", ""], metrics["retry_queue_depth", ""]) == (1, 0)


@pytest.mark.source("000", "138", "140-142")
def test_a_retry_that_succeeds_ends_the_retries(tmp_path: Path) -> None:
    script = '["transient", "transient"]'
    life = live(settings(tmp_path, script=script, usual="accepted"), "critical")
    done = life.history.notification
    assert [one.outcome.value for one in life.history.attempts] == ["transient", "transient", "accepted"]
    assert (done.status, done.attempt_count) == (Status.SENT, 3)
    assert life.dead_letters == ()
    assert life.metrics["retries_executed_total", "success"] == 1
    assert life.metrics["retries_exhausted_total", ""] == 0


@pytest.mark.source("000", "18-22", "73-76", "92-95")
def test_a_device_that_became_inactive_is_not_retried(tmp_path: Path) -> None:
    """The app reports it while the retry waits; before the attempt, the device is asked for."""

    async def uninstall(homing: Homing, id: str) -> None:
        device = {"token": "token-1", "active": False}
        await homing.recipients.put({"id": "ada", "devices": [device]}, who="app")

    life = live(settings(tmp_path), "critical", uninstall)
    done = life.history.notification
    assert (done.status, done.reason, done.attempt_count) == (Status.SKIPPED, Reason.DEVICE_INACTIVE, 1)
    assert life.dead_letters == ()


@pytest.mark.source("000", "27-31", "101-103", "106-121", "151-172", "179-189", "192-217")
def test_the_command_line_has_the_table_of_the_source(tmp_path: Path) -> None:
    settings(tmp_path, store="homing.db")
    rows = Cli(tmp_path).ok("policy", "table", "priority", "--json").json
    for priority, (retries, base, cap) in SECONDS.items():
        delays = [min(base * 2**n, cap) * 1_000 for n in range(retries)]
        mine = [row for row in rows if row["policy"] == f"priority/{priority}"]
        assert [row["minMs"] for row in mine] == delays
        assert [row["maxMs"] for row in mine] == [int(1.3 * delay) for delay in delays]
