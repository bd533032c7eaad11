"""Source 004's retry scheduler: RabbitMQ in and out, the schedule, the persistent queue in PostgreSQL, manual
review, its environment and its metrics, with the real command, a real broker and messages written by hand.

Its retry task is a notification here, its `failed` and manual review are a dead letter, and its counter of
retries is `attempts` minus one.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from support.cli_driver import Cli
from support.rabbitmq_server import QueuedMessage, rabbit_queues
from support.retry_messages import read_retry, write_retry
from support.retry_scheduler import RetryScheduler

LATER = """
CREATE OR REPLACE FUNCTION homing.now_ms() RETURNS bigint LANGUAGE sql STABLE AS
$$ SELECT floor(extract(epoch FROM now() + interval '{minutes} minutes') * 1000)::bigint $$
"""


@pytest.mark.source("004", "12", "15-16", "62-68")
def test_the_schedule_is_that_of_the_source(tmp_path: Path) -> None:
    rows = Cli(tmp_path).ok("policy", "table", "broker", "--json").json
    delays = [(row["attempt"], row["minMs"], row["maxMs"]) for row in rows]
    assert delays == [(1, 2_000, 3_000), (2, 4_000, 5_000), (3, 8_000, 9_000)]


@pytest.mark.source("004", "18", "78-82", "125-126", "159-161", "220-221", "229-230", "232")
def test_retries_are_kept_in_postgresql_and_end_in_manual_review(tmp_path: Path, postgres_url: str) -> None:
    env = {
        "DATABASE_URL": postgres_url,
        "HOMING_PRESET": "broker",
        "HOMING_PROVIDERS__MAIL__KIND": "scripted",
        "HOMING_PROVIDERS__MAIL__USUAL": "transient",
    }
    cli = Cli(tmp_path)  # without a settings file
    cli.ok("db", "migrate", stdin=None, **env)
    sent = cli.ok(
        "send", "--to", "ada@example.org", "--channel", "email", "--body", "Hi", "--json", stdin=None, **env
    )
    id = sent.json["notificationIds"][0]
    assert not list(tmp_path.iterdir()), "nothing is stored in a file"
    with psycopg.connect(postgres_url, autocommit=True, row_factory=dict_row) as db:
        for retries, delay_s in enumerate((2, 4, 8)):
            db.execute(LATER.format(minutes=retries))
            before = store_time(db)
            assert process(cli, env) == {"processed": 1, "succeeded": 0, "retried": 1, "failed": 0}
            # Each command is a process of its own, so only the database remembers the retry.
            (kept,) = db.execute("SELECT * FROM homing.failed_notifications").fetchall()
            assert (str(kept["id"]), kept["retry_count"]) == (id, retries)
            soonest, latest = (moment + timedelta(seconds=delay_s) for moment in (before, store_time(db)))
            assert soonest <= kept["next_retry_at"] <= latest + timedelta(seconds=1)
        db.execute(LATER.format(minutes=3))
        assert process(cli, env) == {"processed": 1, "succeeded": 0, "retried": 0, "failed": 1}
        (dead,) = db.execute("SELECT * FROM homing.dead_letters").fetchall()
        assert (str(dead["id"]), dead["reason"]) == (id, "RETRIES_EXHAUSTED")


def process(cli: Cli, env: dict[str, str]) -> dict[str, int]:
    done = cli.ok("process", "--json", stdin=None, **env).json
    return {name: done[name] for name in ("processed", "succeeded", "retried", "failed")}


def store_time(db: psycopg.Connection[dict[str, Any]]) -> datetime:
    (row,) = db.execute("SELECT to_timestamp(homing.now_ms() / 1000.0) AS now").fetchall()
    found: datetime = row["now"]
    return found


# The service ---------------------------------------------------------------------------------------

PAYLOAD = bytes(range(256))


class Setup:
    """The queues and the environment of one test."""

    def __init__(self, prefix: str, rabbitmq_url: str, database_url: str) -> None:
        self.rabbitmq_url, self.database_url = rabbitmq_url, database_url
        self.retry, self.review = f"{prefix}retry.scheduled", f"{prefix}manual-review.pending"
        self.orders, self.quarantine = f"{prefix}orders", f"{prefix}retry.scheduled.quarantine"

    @property
    def env(self) -> dict[str, str]:
        return {
            "SERVICE_NAME": "retry-scheduler",
            "RABBITMQ_URL": self.rabbitmq_url,
            "RETRY_QUEUE": self.retry,
            "MANUAL_REVIEW_QUEUE": self.review,
            "DEFAULT_MAX_RETRIES": "3",
            "BASE_DELAY_MS": "300",
            "MAX_DELAY_MS": "60000",
            "RETRY_POLL_INTERVAL_MS": "10000",
            "DATABASE_URL": self.database_url,
        }

    def rows(self) -> dict[str, dict[str, Any]]:
        with psycopg.connect(self.database_url, row_factory=dict_row) as db:
            found = db.execute("SELECT * FROM homing.retry_queue").fetchall()
        return {row["message_id"]: row for row in found}


@pytest.fixture
def setup(queue_prefix: str, rabbitmq_url: str, postgres_url: str) -> Setup:
    return Setup(queue_prefix, rabbitmq_url, postgres_url)


def until(holds: Callable[[], bool]) -> None:
    limit = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < limit
        time.sleep(0.05)


async def give(setup: Setup, *bodies: bytes) -> None:
    async with rabbit_queues(setup.rabbitmq_url) as queues:
        await queues.put(setup.retry, *bodies)


async def take(setup: Setup, name: str, number: int) -> list[QueuedMessage]:
    async with rabbit_queues(setup.rabbitmq_url) as queues:
        return await queues.collect(name, number)


async def declare(setup: Setup, *names: str) -> None:
    async with rabbit_queues(setup.rabbitmq_url) as queues:
        await queues.declare(*names)


async def clear(setup: Setup) -> None:
    async with rabbit_queues(setup.rabbitmq_url) as queues:
        await queues.delete(setup.retry, setup.review, setup.quarantine, setup.orders)


@pytest.mark.slow
@pytest.mark.source(
    "004", "14", "17", "26-27", "29-31", "36-44", "54-60", "86-96", "99", "135-152", "162-166"
)
@pytest.mark.source("004", "178-197", "206-207", "209-212", "215-218", "228-232", "234")
def test_the_service_retries_publishes_and_gives_up_as_the_source_has_it(
    tmp_path: Path, setup: Setup
) -> None:
    message: dict[str, Any] = {
        "original_payload": PAYLOAD,
        "original_queue": setup.orders,
        "error_reason": "timeout",
    }
    asyncio.run(declare(setup, setup.orders))
    with RetryScheduler(tmp_path, setup.env, "--declare") as service:
        service.until_ready()
        assert service.get("/healthz")[0] == 200
        first = write_retry(message_id="7d444840-9dc0-11d1-b245-5ffdce74fad2", **message)
        last = write_retry(message_id="last", retry_count=2, max_retries=3, **message)
        used_up = write_retry(message_id="used up", retry_count=3, **message)
        later_ms = int((datetime.now(UTC) + timedelta(hours=1)).timestamp() * 1000)
        later = write_retry(message_id="later", next_retry_at_ms=later_ms, max_retries=9, **message)
        asyncio.run(give(setup, first, last, used_up, later, b"not a RetryMessage"))

        published = {
            one.headers["x-homing-message-id"]: one for one in asyncio.run(take(setup, setup.orders, 2))
        }
        assert published.keys() == {"7d444840-9dc0-11d1-b245-5ffdce74fad2", "last"}
        assert {one.body for one in published.values()} == {PAYLOAD}
        assert published["last"].headers["x-homing-retry-count"] == 3
        (reviewed,) = asyncio.run(take(setup, setup.review, 1))
        assert read_retry(reviewed.body).message_id == "used up"
        assert read_retry(reviewed.body).original_payload == PAYLOAD
        assert read_retry(reviewed.body).error_reason == "timeout"
        assert reviewed.headers["x-homing-reason"] == "RETRIES_EXHAUSTED"
        (quarantined,) = asyncio.run(take(setup, setup.quarantine, 1))
        assert quarantined.body == b"not a RetryMessage"

        until(lambda: [row["status"] for row in setup.rows().values()].count("retried") == 2)
        rows = setup.rows()
        statuses = {name: row["status"] for name, row in rows.items()}
        assert statuses == {
            "7d444840-9dc0-11d1-b245-5ffdce74fad2": "retried",
            "last": "retried",
            "used up": "failed",
            "later": "pending",
        }
        assert {name: row["retry_count"] for name, row in rows.items()} == {
            "7d444840-9dc0-11d1-b245-5ffdce74fad2": 1,
            "last": 3,
            "used up": 3,
            "later": 0,
        }
        assert {name: row["max_retries"] for name, row in rows.items()} == {
            "7d444840-9dc0-11d1-b245-5ffdce74fad2": 3,
            "last": 3,
            "used up": 3,
            "later": 9,
        }
        kept = rows["later"]
        assert bytes(kept["original_payload"]) == PAYLOAD
        assert (kept["original_queue"], kept["error_reason"]) == (setup.orders, "timeout")
        assert kept["next_retry_at"].timestamp() * 1000 == pytest.approx(later_ms, abs=1)
        assert isinstance(kept["id"], int)
        assert kept["created_at"] <= datetime.now(UTC)

        series, queue = service.metrics(), f'queue="{setup.orders}"'
        assert series[f"retries_scheduled_total{{{queue}}}"] == 4
        assert series[f'retries_executed_total{{{queue},status="success"}}'] == 2
        assert series[f"retries_exhausted_total{{{queue}}}"] == 1
        assert series["retry_queue_depth"] == 1
        assert any('service="retry-scheduler"' in name for name in series)
        assert service.stop() == 0
    lines = [json.loads(line) for line in service.log.read_text().splitlines() if line.startswith("{")]
    assert {line["service"] for line in lines} <= {"retry-scheduler"}
    assert not [one for one in tmp_path.iterdir() if one.suffix in (".db", ".toml")]
    asyncio.run(clear(setup))


@pytest.mark.source("004", "80-82", "126", "145-150")
def test_a_task_survives_a_kill_and_is_published_by_the_next_process(tmp_path: Path, setup: Setup) -> None:
    asyncio.run(declare(setup, setup.orders))
    body = write_retry(message_id="m", original_queue=setup.orders, original_payload=PAYLOAD)
    with RetryScheduler(tmp_path, {**setup.env, "BASE_DELAY_MS": "3000"}, "--declare") as service:
        service.until_ready()
        asyncio.run(give(setup, body, body))
        until(lambda: bool(setup.rows()))
        service.kill()
        service.start()
        (published,) = asyncio.run(take(setup, setup.orders, 1))
        assert published.body == PAYLOAD
        until(lambda: setup.rows()["m"]["status"] == "retried")
    assert examine(tmp_path, setup) == {
        "provider": (True, "rabbitmq (queue)"),
        "sink": (True, f"the queue '{setup.review}' exists"),
        "bridge": (True, f"the queues '{setup.retry}', '{setup.quarantine}', '{setup.review}' exist"),
    }
    asyncio.run(clear(setup))
    assert examine(tmp_path, setup)["bridge"] == (
        False,
        f"rabbitmq: the queue '{setup.retry}' does not exist",
    )


def examine(folder: Path, setup: Setup) -> dict[str, tuple[bool, str]]:
    """Returns what `homing doctor` reports about the broker, with the variables of the service alone."""
    checks = Cli(folder)("doctor", "--json", stdin=None, **setup.env).json["checks"]
    assert checks[0]["detail"].startswith("the variables of the retry scheduler, preset broker")
    shown = {one["name"]: one for one in checks if one["name"] in ("provider", "sink", "bridge")}
    parts = {
        name: (one["ok"], one["detail"].partition(": RabbitMQ")[0], one["detail"].partition("; ")[2])
        for name, one in shown.items()
    }
    return {name: (ok, after or before) for name, (ok, before, after) in parts.items()}


@pytest.mark.source("004", "73-76")
def test_in_memory_the_service_runs_with_a_warning(tmp_path: Path, setup: Setup) -> None:
    asyncio.run(declare(setup, setup.orders))
    with RetryScheduler(tmp_path, {**setup.env, "DATABASE_URL": "memory:"}, "--declare") as service:
        service.until_ready()
        asyncio.run(give(setup, write_retry(message_id="m", original_queue=setup.orders)))
        assert len(asyncio.run(take(setup, setup.orders, 1))) == 1
        assert "a restart loses all tasks" in service.log.read_text()
        assert service.stop() == 0
    asyncio.run(clear(setup))


def test_a_wrong_variable_is_named(tmp_path: Path) -> None:
    result = Cli(tmp_path)("bridge", "rabbitmq", stdin=None, HTTP_PORT="eighty")
    assert result.code == 2
    assert result.err == "error: HTTP_PORT: is 'eighty'; it must be a whole number between 0 and 65535\n"
    result = Cli(tmp_path)("bridge", "rabbitmq", stdin=None, DATABASE_URL="mysql://db/x")
    assert "DATABASE_URL: must be a URL like postgresql://" in result.err
    assert "for another store, unset it and set HOMING_STORE" in result.err
    result = Cli(tmp_path)("bridge", "rabbitmq", stdin=None, RABBITMQ_URL="http://secret@host")
    assert "url: must be a URL like amqp://" in result.err
    assert "secret" not in result.err
