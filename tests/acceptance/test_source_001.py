"""Source 001's gateway over real HTTP, and its queue processor as the real command, with its numbers.

Its `pending` after an attempt is `retrying` here, and its minutes are `delayMs`.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from homing import Homing, Outcome, OutcomeKind, SendRequest
from homing.compose import factories
from homing.core.notifications import Channel, Content, Priority, Recipient
from homing.core.ports.providers import Delivery
from homing.core.retry.policy import MatchKeys
from homing.core.times import moment
from homing.engine.system_runtime import SystemClock
from homing.stores.sqlite import SqliteStore
from support.cli_driver import Cli
from support.running_service import RunningService

MINUTE_MS = 60_000
FIVE = 5 * MINUTE_MS
OUTCOMES = {
    "s": Outcome(OutcomeKind.ACCEPTED, provider_message_id="m"),
    "t": Outcome(OutcomeKind.TRANSIENT, error_code="timeout", error="Connection timeout"),
    "b": Outcome(OutcomeKind.BAD_RECIPIENT, error_code="550", error="No such mailbox"),
}

Wave = dict[str, int]
"""Outcomes of the attempts, one letter each → number of notifications."""


class StoppedClock(SystemClock):
    """A wall clock that stands still until a test advances it."""

    def __init__(self, behind_ms: int) -> None:
        self._now = super().now_ms() - behind_ms

    def now_ms(self) -> int:
        return self._now

    def pass_minutes(self, minutes: int) -> None:
        self._now += minutes * MINUTE_MS


class FakeMailServer:
    """A mail server whose reply depends on the first part of the address, after the last one it repeats."""

    async def send(self, delivery: Delivery) -> Outcome:
        fate = delivery.address.partition("-")[0]
        return OUTCOMES[fate[min(delivery.attempt, len(fate)) - 1]]

    async def check(self) -> bool:
        return True

    async def close(self) -> None:
        """Does nothing: there is no connection."""


GATEWAY = """
preset = "simple"
[providers.smtp]
kind = "fake_mail"
channels = ["email"]
breaker = "off"  # the source has none
"""


@pytest.fixture
def gateway_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The settings of the gateway, whose mail server is in this module."""
    monkeypatch.setitem(factories.PROVIDERS, "fake_mail", f"{__name__}:FakeMailServer")
    file = tmp_path / "gateway.toml"
    file.write_text(GATEWAY)
    return file


async def live(homing: Homing, clock: StoppedClock, waves: dict[str, tuple[Wave, Wave, Wave, Wave]]) -> None:
    """Brings notifications of several tenants into the source's states, over a quarter of an hour.

    The first wave has three attempts, the second two, the third one; the fourth is not attempted.
    """

    async def accept(wave: int) -> None:
        for tenant, of_tenant in waves.items():
            requests = [
                SendRequest(
                    recipient=Recipient(email=f"{fate}-{number}@example.com"),
                    channel="email",
                    type="message",
                    content=Content(subject="News", body="Something happened."),
                )
                for fate, count in of_tenant[wave].items()
                for number in range(count)
            ]
            async for result in homing.of(tenant).submit_many(requests):
                assert not hasattr(result, "code"), result

    for wave, waits in ((0, (5, 10)), (1, (5,)), (2, ())):
        await accept(wave)
        await homing.process(2_000)
        for minutes in waits:
            clock.pass_minutes(minutes)
            await homing.process(2_000)
    await accept(3)


HEALTH: tuple[Wave, Wave, Wave, Wave] = (
    {"ttt": 3},
    {"ts": 25, "tt": 10, "tb": 4},
    {"s": 935, "b": 8, "t": 8},
    {"s": 7},
)
STATISTICS: tuple[Wave, Wave, Wave, Wave] = ({"ttt": 2}, {"tt": 3, "tb": 2}, {"t": 8, "b": 4}, {})


@pytest.fixture
def gateway(serve: Callable[..., RunningService], gateway_file: Path) -> RunningService:
    clock = StoppedClock(behind_ms=0)
    service = serve(store="memory:", config_file=gateway_file, clock=clock)
    service.on_loop(lambda homing: live(homing, clock, {"health": HEALTH, "statistics": STATISTICS}))
    return service


@pytest.mark.source("001", "9-17", "19-20", "119-146", "166-242", "454-461", "537", "574-590")
def test_the_gateway_s_methods_return_the_numbers_of_the_source(gateway: RunningService) -> None:
    def get(path: str, tenant: str = "statistics") -> Any:
        found = gateway.call("GET", f"/api/v1/{path}", key=tenant)
        assert found.status == 200, found
        return found.json

    # calculateRetryDelay(n, 5): the overview's table, and the method's example.
    delays = {n: get(f"queue/delay?attempt={n}&delayMs={FIVE}")["delayMinutes"] for n in range(-1, 4)}
    assert delays == {-1: 0, 0: 0, 1: 5, 2: 10, 3: 20}

    # Per type: incident 5 attempts from 10 minutes, checkIn 3 from 5, photo 2 from 15.
    per_type = {
        type: get(f"queue/delay?attempt=1&type={type}")["delayMinutes"] for type in ("incident", "photo")
    }
    assert per_type == {"incident": 10, "photo": 15}

    # getRetryInfo(123, 3, 5): two attempts made, the third in ten minutes.
    waiting = get(f"queue/waiting?delayMs={FIVE}")["items"]
    one = next(n for n in waiting if n["attemptCount"] == 2)
    info = get(f"notifications/{one['id']}/retry-info?maxAttempts=3&delayMs={FIVE}")
    last, due = (datetime.fromisoformat(info.pop(name)) for name in ("lastAttemptAt", "nextRetryAt"))
    assert due - last == timedelta(minutes=10)
    assert info == {
        "notificationId": one["id"],
        "currentAttempts": 2,
        "maxAttempts": 3,
        "retriesRemaining": 1,
        "hasMoreRetries": True,
        "isReadyForRetry": False,
        "status": "retrying",
        "errorMessage": "Connection timeout",
        "currentDelayMinutes": 10,
        "nextDelayMinutes": 20,
        "moves": 0,
        "spent": [],
    }

    # selectNotificationsPendingRetry(5), with nextRetryAt
    assert sorted(n["attemptCount"] for n in waiting) == [1] * 8 + [2] * 3
    assert all(n["nextRetryAt"] > n["lastAttemptAt"] for n in waiting)

    # selectPendingNotifications(50, 3, 5): all are in backoff, but not with other settings.
    assert get(f"queue/pending?limit=50&maxAttempts=3&delayMs={FIVE}") == {"items": []}
    assert len(get("queue/pending?limit=100&maxAttempts=5&delayMs=0")["items"]) == 11
    assert len(get("queue/pending?limit=100&maxAttempts=2&delayMs=0")["items"]) == 8

    # getRetryStatistics()
    assert get("queue/statistics")["items"] == [
        {"attempts": 1, "count": 12, "pendingCount": 8, "failedCount": 4},
        {"attempts": 2, "count": 5, "pendingCount": 3, "failedCount": 2},
        {"attempts": 3, "count": 2, "pendingCount": 0, "failedCount": 2},
    ]

    # getRetryHealthMetrics()
    health = get("queue/health", "health")
    del health["healthy"]  # depends on how many became dead letters in the clock hour before
    assert {one["metric"]: one["limit"] for one in health.pop("thresholds")}["pendingRetryCount"] == 100
    assert datetime.fromisoformat(health.pop("oldestRetry")).tzinfo is not None
    assert health == {
        "totalRetrying": 25,
        "avgAttempts": 1.8,
        "maxAttempts": 3,
        "pendingRetryCount": 18,
        "permanentlyFailedCount": 7,
        "totalNotifications": 1000,
        "sentCount": 960,
        "failedCount": 15,
        "recoveredByRetryCount": 25,
        "successRate": 96.0,
        "failureRate": 1.5,
        "retryRecoveryRate": 2.6,
    }

    # The monitoring queries: success by attempt, and failures by error, most frequent first.
    assert [row["successRate"] for row in get("queue/success-by-attempt", "health")["items"]] == [
        98.32,
        64.1,
        0,
    ]
    groups = get("queue/errors", "health")["items"]
    assert [(group["lastError"], group["count"]) for group in groups] == [
        ("No such mailbox", 12),
        ("Connection timeout", 3),
    ]
    failed = get("notifications?statuses=failed&limit=50", "health")["items"]
    assert len(failed) == 15


async def mail(homing: Homing, fate: str, **fields: Any) -> str:
    sent = await homing.send(f"{fate}-0@example.com", channel="email", subject="News", body="Hello", **fields)
    return sent.id


@pytest.mark.source("001", "22-35", "40-75", "83-88", "95-101", "103-117", "244-268", "428-433")
async def test_a_notification_is_retried_after_5_and_10_minutes_and_then_fails(gateway_file: Path) -> None:
    clock = StoppedClock(behind_ms=0)
    async with Homing("memory:", config_file=gateway_file, clock=clock) as homing:
        id = await mail(homing, "ttt", type="message", data={"child": 7})
        fresh = await homing.get(id)
        assert (fresh.status, fresh.attempt_count, fresh.last_attempt_at) == ("pending", 0, None)
        assert homing.is_ready(fresh)
        assert (await homing.retry_info(id)).max_attempts == 3
        for attempts, minutes in ((1, 5), (2, 10)):
            assert (await homing.process()).retried == 1
            failed = await homing.get(id)
            assert (failed.status, failed.attempt_count) == ("retrying", attempts)
            assert failed.last_error == "Connection timeout"
            assert failed.last_attempt_at == moment(clock.now_ms())
            # Example 1: is it ready, and if not, when is it?
            assert not homing.is_ready(failed)
            assert homing.next_retry_time(failed) == failed.last_attempt_at + timedelta(minutes=minutes)
            info = await homing.retry_info(id)
            assert (info.retries_remaining, info.current_delay_minutes) == (3 - attempts, minutes)
            clock.pass_minutes(minutes - 1)
            assert (await homing.process()).processed == 0, "not enough time has passed"
            assert (await homing.select_pending(50, 3, timedelta(minutes=5))) == ()
            clock.pass_minutes(1)
            assert homing.is_ready(await homing.get(id))
        assert (await homing.process()).failed == 1
        dead = await homing.get(id)
        assert (dead.status, dead.attempt_count, dead.last_error) == ("failed", 3, "Connection timeout")
        recovered = await mail(homing, "ts")
        await homing.process()
        clock.pass_minutes(5)
        await homing.process()
        sent = await homing.get(recovered)
        assert (sent.status, sent.attempt_count) == ("sent", 2)
        assert sent.sent_at is not None


@pytest.mark.source("001", "148-164", "295-321")
async def test_notifications_are_selected_with_other_settings_and_processed(gateway_file: Path) -> None:
    clock = StoppedClock(behind_ms=0)
    async with Homing("memory:", config_file=gateway_file, clock=clock) as homing:
        ids = [await mail(homing, fate) for fate in ("tts", "ts", "s")]
        await homing.process()
        clock.pass_minutes(10)
        await homing.process(ids=ids[:1])
        clock.pass_minutes(10)
        fifth = await mail(homing, "s")
        chosen = await homing.select_pending(100, 5, timedelta(minutes=10))
        assert [one.id for one in chosen] == [ids[1], fifth], "the other one waits for 20 minutes by these"
        info = await homing.retry_info(ids[1], 5, timedelta(minutes=10))
        assert (info.current_attempts, info.max_attempts, info.current_delay_minutes) == (1, 5, 10)
        done = await homing.process(ids=[one.id for one in chosen])
        assert (done.processed, done.succeeded) == (2, 2)
        left = await homing.get(ids[0])
        assert (left.status, left.attempt_count) == ("retrying", 2)


@pytest.mark.source("001", "270-285", "357-381", "447-452", "478-482", "527-531")
async def test_alerts_and_thresholds_watch_what_the_source_watches(gateway_file: Path) -> None:
    clock = StoppedClock(behind_ms=0)
    events: list[dict[str, Any]] = []
    async with Homing(
        "memory:", config_file=gateway_file, clock=clock, on_event=lambda event: events.append(event.payload)
    ) as homing:
        for number in range(101):
            await homing.send(f"t-{number}@example.com", channel="email", body="Hello")
        for number in range(20):
            await homing.send(f"b-{number}@example.com", channel="email", body="Hello")
        await homing.process(1_000)
        health = await homing.health_metrics()
        assert (health.pending_retry_count, health.failed_count) == (101, 20)
        assert health.failure_rate > 5.0
        assert health.oldest_retry is not None
        raised = {event["alert"] for event in events if event.get("eventType") == "Alert"}
        assert {"RetryBacklog", "FailureRate"} <= raised


@pytest.mark.source("001", "391-417", "532")
def test_the_monitoring_queries_are_answered_by_sql_rest_and_the_command_line(
    gateway_file: Path, postgres_url: str, serve: Callable[..., RunningService], tmp_path: Path
) -> None:
    service = serve(store=postgres_url, config_file=gateway_file)

    async def make(homing: Homing) -> dict[str, str]:
        ids = {fate: await mail(homing, fate, type="checkIn") for fate in ("tt", "ttt", "b", "ts", "s")}
        await homing.process()
        for fates in (("ttt", "ts"), ("ttt",)):
            await homing.process(ids=[ids[fate] for fate in fates])
        return ids

    ids = service.on_loop(make)
    (tmp_path / "homing.toml").write_text(f'store = "{postgres_url}"\npreset = "simple"\n')
    waiting, dead, stats = Cli(tmp_path).many(
        ["waiting", "--by", "last-attempt", "--json"],
        ["dead", "list", "--limit", "50", "--json"],
        ["stats", "--json"],
    )

    def rest(path: str) -> list[dict[str, Any]]:
        return list(service.call("GET", f"/api/v1/{path}", key="default").json["items"])

    with psycopg.connect(postgres_url, autocommit=True) as db:
        # 1. What is retried, the oldest last attempt first.
        rows = db.execute(
            "SELECT id::text, notification_type, retry_count + 1, last_error FROM homing.failed_notifications"
            " ORDER BY updated_at"
        ).fetchall()
        assert rows == [(ids["tt"], "checkIn", 1, "Connection timeout")]
        for found in (waiting.json, rest("queue/waiting?by=last-attempt")):
            assert [(one["id"], one["attemptCount"], one["lastError"]) for one in found] == [
                (ids["tt"], 1, "Connection timeout")
            ]
        # 2. What has failed for good, the newest first.
        rows = db.execute(
            "SELECT id::text, notification_type, attempt_count, final_error FROM homing.dead_letters"
            " ORDER BY created_at DESC LIMIT 50"
        ).fetchall()
        assert rows == [
            (ids["b"], "checkIn", 1, "No such mailbox"),
            (ids["ttt"], "checkIn", 3, "Connection timeout"),
        ]
        for found in (dead.json["items"], rest("notifications?statuses=failed&limit=50")):
            assert {(one["id"], one["attemptCount"], one["lastError"]) for one in found} == {
                (ids["b"], 1, "No such mailbox"),
                (ids["ttt"], 3, "Connection timeout"),
            }
        # 3. The success rate by number of attempts.
        rows = db.execute(
            "SELECT attempts, count, coalesce(sent_count, 0), coalesce(failed_count, 0),"
            " round(100.0 * coalesce(sent_count, 0) / count, 2)::float"
            " FROM homing.retry_statistics WHERE attempts > 0 ORDER BY attempts"
        ).fetchall()
        expected = [(1, 3, 1, 1, 33.33), (2, 1, 1, 0, 100.0), (3, 1, 0, 1, 0.0)]
        assert rows == expected
        names = ("attempts", "total", "succeeded", "failed", "successRate")
        for found in (stats.json["successByAttempt"], rest("queue/success-by-attempt")):
            assert [tuple(one[name] for name in names) for one in found] == expected


SETTINGS = """
store = "homing.db"
preset = "simple"
[providers.smtp]
kind = "file"
path = "mail.jsonl"
channels = ["email"]
[providers.fcm]
kind = "file"
path = "push.jsonl"
channels = ["push"]
"""
QUEUE: tuple[Wave, Wave, Wave, Wave] = ({"ttt": 3}, {"tt": 10, "tb": 4}, {"t": 8}, {"s": 5})


@pytest.fixture
def cli(tmp_path: Path, gateway_file: Path) -> Cli:
    """Returns a queue with 25 pending, 18 of them in backoff, and 7 failed. The last two are one check-in."""
    (tmp_path / "homing.toml").write_text(SETTINGS)
    cli = Cli(tmp_path)

    async def past() -> None:
        clock = StoppedClock(behind_ms=20 * MINUTE_MS)
        store = SqliteStore(tmp_path / "homing.db", clock=clock.now_ms)
        async with Homing(store, config_file=gateway_file, clock=clock) as homing:
            await live(homing, clock, {"default": QUEUE})

    asyncio.run(past())
    to = ["--email", "parent@example.com", "--device-token", "a-token-of-a-phone"]
    cli.ok("send", "--channel", "both", "--type", "checkIn", "--title", "Here", "--body", "Checked in", *to)
    return cli


TIME = r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] "


def on_terminal(cli: Cli, *argv: str) -> list[str]:
    """Runs a command on a terminal of 80 columns, and returns the lines that it prints."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with subprocess.Popen(
        cli.command("--no-color", *argv),
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.PIPE,
        cwd=cli.folder,
        env=cli.env(TERM="xterm"),
    ) as run:
        os.close(theirs)
        text = b""
        with suppress(OSError):  # the end of a terminal
            while part := os.read(ours, 65536):
                text += part
        os.close(ours)
        assert run.wait() == 0, run.stderr.read() if run.stderr else ""
    return [re.sub("\x1b\\[[0-9;]*m", "", line) for line in text.decode().splitlines()]


@pytest.mark.source("001", "323-355", "443-445", "513-518")
def test_the_queue_processor_prints_the_lines_of_the_source_on_80_columns(cli: Cli) -> None:
    """Line for line, with a notification per channel, masked recipients, and provider and duration added."""
    lines = on_terminal(cli, "process", "--verbose", "--show-recipients")
    shown = [
        "Notification Queue Processor started",
        "Limit: 50, Dry Run: No",
        "Queue status - Pending: 25, Processing: 0, Failed: 7",
        r"Retry settings - Max attempts: 3, Base delay: 5 minutes \(exponential backoff\)",
        "Notifications waiting for retry backoff: 18",
        r"Average attempts: 1\.8",
        r"Found 7 pending notification\(s\) to process",
        r"Processing notification #(\S+) \(checkIn, channel: email\)",
        r"  Sending email to parent@example\.com via smtp",
        r"Processing notification #(\S+) \(checkIn, channel: push\)",
        r"  Sending push notification to a-token-of-a-phone via fcm",
        r"  Email sent successfully in \d+ms",
        r"  Notification #(\S+) marked as sent",
        r"  Push sent successfully in \d+ms",
        r"  Notification #(\S+) marked as sent",
        "Processed: 7, Succeeded: 7, Retried: 0, Failed: 0",
    ]
    assert all(re.match(TIME, line) for line in lines), "no line is broken at the edge"
    for one in shown:
        assert any(re.fullmatch(TIME + one, line) for line in lines), (one, lines)
    order = [next(i for i, line in enumerate(lines) if re.fullmatch(TIME + one, line)) for one in shown[:8]]
    assert order == sorted(order)
    masked = on_terminal(cli, "process", "--verbose", "--dry-run")
    assert not any("example.com" in line and "•••" not in line for line in masked)


@pytest.mark.source("001", "33-35", "435-445", "463-474", "485-502", "506-512", "519-526")
def test_settings_are_changed_at_runtime_and_the_batch_size_is_stored(cli: Cli) -> None:
    _, development, _, _, high_volume = cli.many(
        ["policy", "set", "all", "--max-attempts", "2", "--base", "1m"],
        ["process", "--dry-run", "--verbose"],
        ["policy", "set", "all", "--max-attempts", "5", "--base", "10m"],
        ["settings", "set", "batch_size", "200"],
        ["process", "--dry-run", "--verbose"],
    )
    assert "Max attempts: 2, Base delay: 1 minute" in development.out
    assert "Max attempts: 5, Base delay: 10 minutes" in high_volume.out
    assert "Limit: 200, Dry Run: Yes" in high_volume.out
    changed, size, one, table, worker = cli.many(
        ["policy", "set", "all", "--max-attempts", "5", "--base", "10m", "--who", "ada"],
        ["settings", "set", "batch_size", "3"],
        ["process", "--verbose"],
        ["policy", "show", "--type", "message", "--json"],
        ["worker", "--interval=0s"],
    )
    assert changed.code == size.code == table.code == 0
    assert re.search(r"Retry settings - Max attempts: 5, Base delay: 10 minutes \(exponential", one.out)
    assert "Limit: 3, Dry Run: No" in one.out
    assert one.out.splitlines()[-1].endswith("Processed: 3, Succeeded: 3, Retried: 0, Failed: 0")
    assert worker.err == "error: --interval: is 0 ms; it must be at least 1 ms\n"
    running = cli.start("worker", "--interval=30", "--batch-size=100")
    assert running.stdout is not None
    started = running.stdout.readline()
    running.terminate()
    running.communicate(timeout=60)
    assert re.search(r"polls every 30s, slots per channel: priority 100, standard 100, bulk 100", started)


@pytest.mark.source("001", "540-547")
def test_a_dry_run_and_a_purge_match_the_source(cli: Cli) -> None:
    dry, purged, kept, health = cli.many(
        ["process", "--dry-run", "--verbose", "--limit", "2"],
        ["process", "--purge", "--purge-days=0", "--json"],
        ["process", "--purge", "--purge-days=30", "--json"],
        ["health", "--json"],
    )
    assert "Limit: 2, Dry Run: Yes" in dry.out
    assert dry.out.count("Would process notification #") == 2
    assert purged.json["purged"]["notifications"] == 7 + 7, "seven failed before, seven were sent now"
    assert kept.json["purged"]["notifications"] == 0
    assert health.json["pendingRetryCount"] == 18


@pytest.mark.source("001", "549-572")
async def test_the_backoff_can_be_linear_exponential_or_fibonacci(gateway_file: Path) -> None:
    for backoff, minutes in (
        ("linear", [5, 10, 15, 20, 25, 30, 35]),
        ("exponential", [5, 10, 20, 40, 80, 160, 320]),
        ("fibonacci", [5, 10, 15, 25, 40, 65, 65]),
    ):
        rule = {"name": "own", "backoff": backoff, "base_ms": "5m", "cap_ms": 0, "max_attempts": 8}
        async with Homing("memory:", config_file=gateway_file, rules=[rule]) as homing:
            keys = MatchKeys("default", "message", "", Channel.EMAIL, Priority.MEDIUM)
            delays = [homing.calculate_delay(number, keys=keys) for number in range(-1, 8)]
            assert delays == [timedelta(minutes=n) for n in (0, 0, *minutes)]
