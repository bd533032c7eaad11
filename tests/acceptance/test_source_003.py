"""The walk-through of source 003 in SQL plus `homing process`: its retry test, operations and statistics."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from support.cli_driver import Cli

LICENSE = "myK9Q1-a260f472-e0d76a33-4b6c264c"
SETTINGS = """
store = "{url}"
preset = "fixed"
[providers.edge]
kind = "file"
path = "edge/sent.jsonl"
channels = ["push"]
"""
TRIGGER = """
CREATE TABLE announcements (id serial, license_key text, title text, content text);
CREATE FUNCTION announce() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- The function that the trigger called over HTTP has just failed.
    PERFORM homing.enqueue(
        tenant => NEW.license_key, type => 'announcement', channel => 'push',
        recipient => jsonb_build_object('deviceToken', 'token-1'),
        content => jsonb_build_object('title', NEW.title, 'body', NEW.content),
        metadata => jsonb_build_object('announcement_id', NEW.id),
        already_failed => true, last_error => '401 Unauthorized');
    RETURN NEW;
END $$;
CREATE TRIGGER announced AFTER INSERT ON announcements FOR EACH ROW EXECUTE FUNCTION announce();
"""
LATER = """
CREATE OR REPLACE FUNCTION homing.now_ms() RETURNS bigint LANGUAGE sql STABLE AS
$$ SELECT floor(extract(epoch FROM now() + interval '{minutes} minutes') * 1000)::bigint $$
"""


class SourceDatabase:
    """A database with a trigger, and the command line."""

    def __init__(self, cli: Cli, db: psycopg.Connection[dict[str, Any]]) -> None:
        self.cli = cli
        self._db = db
        self._minutes = 0

    def sql(self, text: str) -> list[dict[str, Any]]:
        cursor = self._db.execute(text)
        return cursor.fetchall() if cursor.description else []

    def announce(self, title: str = "Retry Test") -> None:
        self.sql(
            "INSERT INTO announcements (license_key, title, content) "
            f"VALUES ('{LICENSE}', '{title}', 'Testing retry logic')"
        )

    def process(self) -> dict[str, int]:
        done = self.cli.ok("process", "--json").json
        return {name: done[name] for name in ("processed", "succeeded", "retried", "failed")}

    def wait(self, minutes: int) -> None:
        """Advances the database's clock, which is the one that counts."""
        self._minutes += minutes
        self.sql(LATER.format(minutes=self._minutes))

    def break_it(self) -> None:
        (self.cli.folder / "edge").rename(self.cli.folder / "broken")

    def fix_it(self) -> None:
        (self.cli.folder / "edge").mkdir()


@pytest.fixture
def scene(tmp_path: Path, postgres_url: str) -> Iterator[SourceDatabase]:
    (tmp_path / "homing.toml").write_text(SETTINGS.format(url=postgres_url))
    cli = Cli(tmp_path)
    cli.ok("db", "migrate")
    with psycopg.connect(postgres_url, autocommit=True, row_factory=dict_row) as db:
        db.execute(TRIGGER)
        yield SourceDatabase(cli, db)


def test_the_retry_logic_in_seven_steps(scene: SourceDatabase) -> None:
    # 1 and 2: the provider is broken, and an announcement is made.
    scene.announce()

    # 3: it was queued.
    (queued,) = scene.sql("SELECT * FROM homing.failed_notifications")
    assert (queued["notification_type"], queued["retry_count"]) == ("announcement", 0)
    assert (queued["tenant"], queued["last_error"]) == (LICENSE, "401 Unauthorized")
    assert queued["metadata"] == {"announcement_id": 1}

    # Nothing is due before a minute has passed.
    assert scene.process() == {"processed": 0, "succeeded": 0, "retried": 0, "failed": 0}
    (waiting,) = scene.sql("SELECT * FROM homing.failed_notifications")
    assert (waiting["id"], waiting["retry_count"]) == (queued["id"], 0)
    assert waiting["next_retry_at"] - waiting["created_at"] == timedelta(minutes=1)

    # 4: a minute later.
    scene.wait(minutes=1)
    assert scene.process() == {"processed": 1, "succeeded": 0, "retried": 1, "failed": 0}

    # 5: the count has increased, and the next retry is five minutes away.
    (retried,) = scene.sql("SELECT *, next_retry_at - updated_at AS wait FROM homing.failed_notifications")
    assert (retried["retry_count"], retried["wait"]) == (1, timedelta(minutes=5))
    assert "No such file" in retried["last_error"]

    # 6: repaired, and retried at once.
    scene.fix_it()
    scene.sql(f"SELECT homing.retry_now('{retried['id']}', 'ann')")
    assert scene.process() == {"processed": 1, "succeeded": 1, "retried": 0, "failed": 0}

    # 7: it was delivered.
    assert '"announcement_id":1' in (scene.cli.folder / "edge" / "sent.jsonl").read_text()
    assert scene.sql("SELECT * FROM homing.failed_notifications") == []


def test_after_five_retries_it_is_a_dead_letter_that_can_be_acknowledged_and_resent(
    scene: SourceDatabase,
) -> None:
    scene.announce()
    scene.process()
    for number, minutes in enumerate((1, 5, 15, 60, 360), start=1):
        scene.wait(minutes)
        last = number == 5
        expected = {"processed": 1, "succeeded": 0, "retried": int(not last), "failed": int(last)}
        assert scene.process() == expected, f"retry {number}"

    (dead,) = scene.sql("SELECT * FROM homing.dead_letters WHERE NOT acknowledged")
    assert (dead["retry_count"], dead["notification_type"]) == (5, "announcement")
    assert "No such file" in dead["final_error"]
    assert dead["payload"]["content"]["title"] == "Retry Test"

    scene.fix_it()
    (answer,) = scene.sql(f"SELECT homing.resend('{dead['id']}', 'ann') AS id")
    (seen,) = scene.sql("SELECT * FROM homing.dead_letters")
    assert (seen["acknowledged"], seen["acknowledged_by"]) == (True, "ann")
    assert scene.process() == {"processed": 1, "succeeded": 1, "retried": 0, "failed": 0}
    (kept,) = scene.sql("SELECT * FROM homing.dead_letters")
    assert (kept["acknowledged"], kept["acknowledged_by"]) == (True, "ann")
    assert kept["resent_as"] == answer["id"]
    assert '"announcement_id":1' in (scene.cli.folder / "edge" / "sent.jsonl").read_text()


def test_a_dead_letter_is_acknowledged_by_name(scene: SourceDatabase) -> None:
    scene.sql('SELECT homing.enqueue(\'pigeon\', \'{"deviceToken": "t"}\', \'{"body": "x"}\')')
    scene.process()
    (dead,) = scene.sql("SELECT * FROM homing.dead_letters")
    assert (dead["reason"], dead["acknowledged"]) == ("BAD_CONTENT", False)
    assert "channel" in dead["final_error"]

    scene.sql(f"SELECT homing.acknowledge('{dead['id']}', 'admin_name', 'a typo')")
    (seen,) = scene.sql("SELECT * FROM homing.dead_letters")
    assert (seen["acknowledged"], seen["acknowledged_by"]) == (True, "admin_name")
    scene.process()
    (kept,) = scene.sql("SELECT * FROM homing.dead_letters")
    assert (kept["acknowledged_by"], kept["acknowledged_why"]) == ("admin_name", "a typo")
    shown = scene.cli.ok("dead", "list", "--json").json
    assert [one["acknowledgedBy"] for one in shown["items"]] == ["admin_name"]


def test_statistics_and_cleanup(scene: SourceDatabase) -> None:
    scene.fix_it()
    scene.announce("One")
    scene.announce("Two")
    scene.process()
    stats = {one["status"]: one for one in scene.sql("SELECT * FROM homing.queue_stats")}
    assert (stats["retrying"]["count"], stats["retrying"]["due"]) == (2, 0)
    scene.wait(minutes=2)
    (ready,) = scene.sql("SELECT due FROM homing.queue_stats WHERE status = 'retrying'")
    assert ready["due"] == 2
    scene.process()
    (by_attempts,) = scene.sql("SELECT * FROM homing.retry_statistics")
    assert (by_attempts["attempts"], by_attempts["sent_count"]) == (2, 2)

    scene.wait(minutes=8 * 24 * 60)
    scene.sql("SELECT homing.cleanup()")
    scene.process()
    assert scene.sql("SELECT * FROM homing.messages") == []
    (remembered,) = scene.sql("SELECT * FROM homing.retry_statistics")
    assert remembered["sent_count"] == 2


def test_the_next_retry_can_be_queried(scene: SourceDatabase) -> None:
    scene.process()
    asked = "SELECT homing.calculate_next_retry({n}) - homing.moment(homing.now_ms()) AS wait"
    waits = [scene.sql(asked.format(n=n))[0]["wait"] for n in range(7)]
    assert waits == [timedelta(minutes=m) for m in (1, 5, 15, 60, 360, 360, 360)]
