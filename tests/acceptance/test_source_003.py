"""Source 003 in SQL: its retry test under pg_cron, and its operations and statistics with `homing process`.

The first test is the source's own test, typed into psql, with a worker, a function over HTTP and pg_cron. It
waits for a minute, as the source says. The other tests advance the clock of the database instead.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from homing.core.retry.policy import PolicyPatch, Rule
from homing.core.retry.presets import find_preset
from homing.engine.operations.policies import Policies
from homing.engine.system_runtime import SystemClock
from homing.stores.postgres import PostgresStore, migrations
from support.cli_driver import Cli
from support.edge_function import SECRET_HEADER, EdgeFunction
from support.postgres_servers import skip_if_missing
from support.private_postgres import PrivatePostgres

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


SECRET = "JZ4SDjwSx8Mr1UDVmaYIiNEQOsVMYkQIZneykpRK4Z8="
EDGE_SETTINGS = f"""
store = "{{url}}"
preset = "fixed"
[providers.edge]
kind = "webhook"
secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
recipient_hosts = ["edge.example.com"]
base_url = "{{edge}}"
[providers.edge.headers]
{SECRET_HEADER} = "file:trigger.secret"
"""
EDGE_TABLE = """
CREATE TABLE public.announcements (
    id serial, license_key text, title text, content text, priority text,
    author_role text, author_name text, is_active boolean);
CREATE FUNCTION public.announce() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- The call of the function has just failed.
    PERFORM homing.enqueue(
        tenant => NEW.license_key, type => 'announcement', channel => 'webhook', priority => NEW.priority,
        recipient => jsonb_build_object('url', 'https://edge.example.com/push'),
        content => jsonb_build_object('title', NEW.title, 'body', NEW.content),
        metadata => jsonb_build_object('announcement_id', NEW.id),
        already_failed => true, last_error => '401 Unauthorized');
    RETURN NEW;
END $$;
CREATE TRIGGER announced AFTER INSERT ON public.announcements
    FOR EACH ROW EXECUTE FUNCTION public.announce();
"""


class Psql:
    """Types statements into psql, which prints them as aligned tables."""

    def __init__(self, server: PrivatePostgres, cli: Cli) -> None:
        self._server = server
        self._cli = cli

    def set_secret(self, secret: str) -> None:
        """Replaces the secret of the function, which is not in the database, and tells the worker."""
        (self._cli.folder / "trigger.secret").write_text(secret)
        assert "reloaded providers.edge" in self._cli.ok("reload", "--why", "test").out

    def __call__(self, statement: str) -> list[str]:
        """Returns the lines that psql prints, without empty lines and the number of rows."""
        printed = self._server.output_of("psql", "-X", "-c", statement, self._server.url)
        return [line.strip() for line in printed.splitlines() if line.strip() and not line.startswith("(")]

    def row(self, statement: str) -> dict[str, str]:
        """Returns the only row of a result, by column."""
        names, _, values = self(statement)
        return dict(zip(_cells(names), _cells(values), strict=True))

    def until(self, statement: str, answer: str) -> None:
        """Repeats a query until it returns this one value."""
        give_up_at = time.monotonic() + 90
        while self(statement)[-1] != answer:
            assert time.monotonic() < give_up_at, f"{statement}: {self(statement)}"
            time.sleep(0.1)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")]


@pytest.fixture
def edge() -> Iterator[EdgeFunction]:
    with EdgeFunction(SECRET) as started:
        yield started


@pytest.fixture
def psql(tmp_path: Path, edge: EdgeFunction) -> Iterator[Psql]:
    """psql on a server with pg_cron and Homing, and a worker."""
    with skip_if_missing(), PrivatePostgres(fsync=False, cron=True) as server:
        settings = EDGE_SETTINGS.format(url=server.url, edge=edge.url)
        (tmp_path / "trigger.secret").write_text(SECRET)
        (tmp_path / "homing.toml").write_text(settings)
        cli = Cli(tmp_path)
        cli.ok("db", "migrate")
        server.query(EDGE_TABLE)
        worker = cli.start("worker")
        try:
            typed = Psql(server, cli)
            typed.until("SELECT count(*) FROM homing.workers", "1")
            yield typed
        finally:
            worker.terminate()
            _, errors = worker.communicate(timeout=60)
        assert "Traceback" not in errors, errors


@pytest.mark.slow
@pytest.mark.source("003", "15", "19", "34-44", "114-150", "267-334", "339-355", "371")
def test_the_retry_logic_typed_into_psql_under_pg_cron(psql: Psql, edge: EdgeFunction) -> None:
    # Automatic processing, as the source recommends it.
    psql("CREATE EXTENSION IF NOT EXISTS pg_cron")
    psql(
        "SELECT cron.schedule("
        "'process-notifications', '* * * * *', 'SELECT homing.process_notification_queue()')"
    )

    # 1: simulate a failure of the function.
    psql.set_secret("WRONG_SECRET")

    # 2: create a test announcement.
    psql(f"""
        INSERT INTO announcements (license_key, title, content, priority, author_role, author_name, is_active)
        VALUES ('{LICENSE}', 'Retry Test', 'Testing retry logic', 'normal', 'admin', 'Test', true)
    """)

    # 3: verify that it was queued: one entry with retry_count = 0.
    psql.until("SELECT count(*) FROM homing.inbox", "0")
    queued = psql.row("SELECT * FROM homing.failed_notifications")
    assert (queued["tenant"], queued["notification_type"], queued["channel"]) == (
        LICENSE,
        "announcement",
        "webhook",
    )
    assert (queued["retry_count"], queued["max_retries"]) == ("0", "5")
    assert (queued["status"], queued["last_error"]) == ("retrying", "401 Unauthorized")
    first_retry_at = _time(queued["next_retry_at"])
    assert first_retry_at - _time(queued["last_error_at"]) <= timedelta(minutes=1)

    # 4: wait for a minute, then process the queue.
    time.sleep(max(0, (first_retry_at - datetime.now(UTC)).total_seconds()))
    processed = psql.row("SELECT * FROM homing.process_notification_queue()")
    assert processed == {"processed": "1", "succeeded": "0", "retried": "1", "failed": "0"}
    assert edge.refused == 1

    # 5: verify that the retry count has increased.
    retried = psql.row(
        "SELECT retry_count, next_retry_at - last_error_at AS wait, next_retry_at - now() AS left, error_code"
        " FROM homing.failed_notifications"
    )
    assert (retried["retry_count"], retried["wait"]) == ("1", "00:05:00")
    assert retried["left"].startswith("00:04:")
    assert retried["error_code"] == "401"

    # 6: fix the secret, force a retry at once, and process.
    psql.set_secret(SECRET)
    psql("SELECT homing.retry_now(id) FROM homing.failed_notifications")
    assert psql("SELECT homing.process_notification_queue()")[-1] == "(1,1,0,0)"

    # 7: verify that the notification was delivered.
    (delivered,) = edge.notifications
    assert delivered["type"] == "announcement"
    assert (delivered["data"]["title"], delivered["data"]["body"]) == ("Retry Test", "Testing retry logic")
    assert psql("SELECT count(*) FROM homing.failed_notifications")[-1] == "0"

    # pg_cron has run its job at least once in that minute.
    job = psql.row("SELECT jobname, schedule, active FROM cron.job WHERE jobname = 'process-notifications'")
    assert job == {"jobname": "process-notifications", "schedule": "* * * * *", "active": "t"}
    psql.until("SELECT count(*) > 0 FROM cron.job_run_details WHERE status = 'succeeded'", "t")
    assert psql("SELECT count(*) FROM cron.job_run_details WHERE status = 'failed'")[-1] == "0"


def _time(printed: str) -> datetime:
    return datetime.fromisoformat(printed.replace("+00", "+00:00"))


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


@pytest.mark.source("003", "35-44")
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
    assert waiting["next_retry_at"] == queued["next_retry_at"] == queued["created_at"] + timedelta(minutes=1)

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


@pytest.mark.source("003", "16-18", "44-45", "93-104", "110", "172-186", "236-256", "376-383", "460-461")
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


@pytest.mark.source("003", "224-234")
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


@pytest.mark.source("003", "188-204", "258-263", "393-396", "401-402", "442")
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


@pytest.mark.source("003", "425")
def test_the_next_retry_can_be_queried(scene: SourceDatabase) -> None:
    scene.process()
    asked = "SELECT homing.calculate_next_retry({n}) - homing.moment(homing.now_ms()) AS wait"
    waits = [scene.sql(asked.format(n=n))[0]["wait"] for n in range(7)]
    assert waits == [timedelta(minutes=m) for m in (1, 5, 15, 60, 360, 360, 360)]


@pytest.mark.source("003", "24-32")
def test_what_does_not_fail_is_delivered_at_once(scene: SourceDatabase) -> None:
    scene.fix_it()
    scene.sql('SELECT homing.enqueue(\'push\', \'{"deviceToken": "t"}\', \'{"title": "Up soon"}\')')
    assert scene.process() == {"processed": 1, "succeeded": 1, "retried": 0, "failed": 0}
    assert scene.sql("SELECT * FROM homing.failed_notifications") == []
    assert "Up soon" in (scene.cli.folder / "edge" / "sent.jsonl").read_text()


@pytest.mark.source("003", "50-71", "73-90", "154-170")
def test_the_views_have_the_columns_of_the_source_s_tables(scene: SourceDatabase) -> None:
    """The tenant is the license key, and the ids of entries and announcements are in the metadata."""
    scene.announce()
    scene.process()
    (waiting,) = scene.sql("SELECT * FROM homing.failed_notifications ORDER BY next_retry_at")
    assert {
        *(
            "id",
            "tenant",
            "payload",
            "retry_count",
            "max_retries",
            "next_retry_at",
            "last_error",
            "last_error_at",
        ),
        *("status", "notification_type", "metadata", "created_at", "updated_at"),
    } <= waiting.keys()
    assert (waiting["tenant"], waiting["max_retries"], waiting["status"]) == (LICENSE, 5, "retrying")
    assert waiting["payload"]["content"] == {"title": "Retry Test", "body": "Testing retry logic"}
    assert waiting["metadata"] == {"announcement_id": 1}

    scene.sql(f"SELECT homing.move_to_dead_letter('{waiting['id']}', 'ann', 'not needed')")
    scene.process()
    (dead,) = scene.sql("SELECT * FROM homing.dead_letters WHERE metadata ->> 'announcement_id' = '1'")
    assert {
        *(
            "id",
            "tenant",
            "payload",
            "retry_count",
            "final_error",
            "notification_type",
            "created_at",
            "failed_at",
        ),
        *("acknowledged", "acknowledged_by", "acknowledged_at", "metadata"),
    } <= dead.keys()
    assert (dead["id"], dead["tenant"], dead["payload"]) == (waiting["id"], LICENSE, waiting["payload"])
    assert (dead["acknowledged"], dead["failed_at"] is not None) == (False, True)


@pytest.mark.source("003", "208-222")
def test_a_notification_is_retried_by_hand(scene: SourceDatabase) -> None:
    scene.announce()
    scene.process()
    scene.fix_it()
    scene.sql("SELECT homing.retry_now(id) FROM homing.failed_notifications")
    assert scene.process() == {"processed": 1, "succeeded": 1, "retried": 0, "failed": 0}


def test_another_migration_keeps_the_delays_of_rules_set_at_runtime(scene: SourceDatabase) -> None:
    scene.cli.ok("policy", "set", "pushes", "--channel", "push", "--steps", "7m", "--max-attempts", "2")
    delays = scene.sql("SELECT position, channel, delays_ms FROM homing.retry_rules ORDER BY position")
    assert {"channel": "push", "delays_ms": [420_000]}.items() <= delays[0].items()
    scene.cli.ok("db", "migrate")
    assert (
        scene.sql("SELECT position, channel, delays_ms FROM homing.retry_rules ORDER BY position") == delays
    )


async def test_the_delays_after_an_upgrade_are_those_of_rules_set_at_runtime_too(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "MIGRATIONS", migrations.MIGRATIONS[:13])  # before the rules' delays
    store = PostgresStore(postgres_url)
    await store.open()
    try:
        await store.migrate()
        policies = Policies(
            find_preset("fixed"), (), registry=store, clock=SystemClock(), random_source=Random(1)
        )
        patch = PolicyPatch(steps_ms=(420_000,), max_attempts=2)
        await policies.set(Rule(name="pushes", channel="push", policy=patch), who="ada")
    finally:
        await store.close()
    (tmp_path / "homing.toml").write_text(SETTINGS.format(url=postgres_url))
    Cli(tmp_path).ok("db", "migrate")
    with psycopg.connect(postgres_url) as db:
        first = db.execute("SELECT channel, delays_ms FROM homing.retry_rules ORDER BY position").fetchone()
    assert first == ("push", [420_000])
