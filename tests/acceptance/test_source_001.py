"""Source 001's gateway over real HTTP, and its queue processor as the real command, with its numbers.

Its `pending` after an attempt is `retrying` here, and its minutes are `delayMs`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from homing import Homing, Listed, Outcome, OutcomeKind, SendRequest
from homing.core.notifications import Channel, Content, Recipient
from homing.core.ports.providers import Delivery
from homing.core.routing.breaker import BreakerPolicy
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
    """A mail server whose reply depends on the first part of the address."""

    async def send(self, delivery: Delivery) -> Outcome:
        return OUTCOMES[delivery.address.partition("-")[0][delivery.attempt - 1]]


PROVIDERS = {
    "smtp": Listed(
        id="smtp",
        provider=FakeMailServer(),  # type: ignore[arg-type]
        channels=(Channel.EMAIL,),
        breaker=BreakerPolicy(failures=10_000),  # the source has none
    )
}


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
def gateway(serve: Callable[..., RunningService]) -> RunningService:
    clock = StoppedClock(behind_ms=0)
    service = serve(store="memory:", providers=PROVIDERS, preset="simple", clock=clock)
    service.on_loop(lambda homing: live(homing, clock, {"health": HEALTH, "statistics": STATISTICS}))
    return service


def test_the_gateway_s_methods_return_the_numbers_of_the_source(gateway: RunningService) -> None:
    def get(path: str, tenant: str = "statistics") -> Any:
        found = gateway.call("GET", f"/api/v1/{path}", key=tenant)
        assert found.status == 200, found
        return found.json

    # calculateRetryDelay(n, 5): the overview's table, and the method's example.
    delays = {n: get(f"queue/delay?attempt={n}&delayMs={FIVE}")["delayMinutes"] for n in range(4)}
    assert delays == {0: 0, 1: 5, 2: 10, 3: 20}

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
def cli(tmp_path: Path) -> Cli:
    """Returns a queue with 25 pending, 18 of them in backoff, and 7 failed. The last two are one check-in."""
    (tmp_path / "homing.toml").write_text(SETTINGS)
    cli = Cli(tmp_path)

    async def past() -> None:
        clock = StoppedClock(behind_ms=20 * MINUTE_MS)
        store = SqliteStore(tmp_path / "homing.db", clock=clock.now_ms)
        async with Homing(
            store, providers=PROVIDERS, preset="simple", clock=clock, config_file=None
        ) as homing:
            await live(homing, clock, {"default": QUEUE})

    asyncio.run(past())
    to = ["--email", "parent@example.com", "--device-token", "a-token-of-a-phone"]
    cli.ok("send", "--channel", "both", "--type", "checkIn", "--title", "Here", "--body", "Checked in", *to)
    return cli


def test_the_queue_processor_prints_what_the_source_shows_with_masked_recipients(cli: Cli) -> None:
    told = cli.ok("process", "--verbose").out.splitlines()
    assert all(re.match(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] ", line) for line in told)
    lines = [line[22:] for line in told]
    assert lines[:3] == [
        "Notification Queue Processor started",
        "Limit: 50, Dry Run: No",
        "Queue status - Pending: 25, Processing: 0, Failed: 7",
    ]
    settings = "Retry settings - Max attempts: 3, Base delay: 5 minutes (exponential backoff)"
    assert settings in lines
    assert "Notifications waiting for retry backoff: 18" in lines
    assert "Average attempts: 1.8" in lines
    assert "Found 7 pending notification(s) to process" in lines
    ids = {}
    for channel in ("email", "push"):
        (first,) = [line for line in lines if line.endswith(f"(checkIn, channel: {channel})")]
        at = lines.index(first)
        ids[channel] = re.findall(r"#(\S+)", first)[0]
        sent = lines[at + 1 : at + 4]
        assert (
            sent[0]
            == {
                "email": "  Sending email to p•••@example.com via smtp",
                "push": "  Sending push to a-to••• via fcm",
            }[channel]
        )
        assert re.fullmatch(rf"  {channel.title()} sent successfully in \d+ms", sent[1])
        assert sent[2] == f"  Notification #{ids[channel]} marked as sent"
    assert lines[-1] == "Processed: 7, Succeeded: 7, Retried: 0, Failed: 0"
    assert not any("parent@" in line or "a-token-of-a-phone" in line for line in told)


def test_a_dry_run_and_a_purge_match_the_source(cli: Cli) -> None:
    dry, purged, health = cli.many(
        ["process", "--dry-run", "--verbose", "--limit", "2"], ["purge", "--days", "30"], ["health", "--json"]
    )
    assert "Limit: 2, Dry Run: Yes" in dry.out
    assert dry.out.count("Would process notification #") == 2
    assert purged.code == 0
    assert (health.json["pendingRetryCount"], health.json["permanentlyFailedCount"]) == (18, 7)
