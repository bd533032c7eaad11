"""Source 004's retry scheduler, as far as it needs no message broker: the schedule, the persistent queue in
PostgreSQL, manual review, its environment and its metrics, with the real commands.

Its retry task is a notification here, its `failed` and manual review are a dead letter, and its counter of
retries is `attempts` minus one.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from support.cli_driver import Cli

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
