"""Statements of a user's own tables with a trigger that notifies: they never fail because of Homing."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from homing.stores.postgres import PostgresStore
from support.postgres_servers import skip_if_missing
from support.private_postgres import PrivatePostgres

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "notify-from-sql.md"
TABLE = """
CREATE TABLE announcements (
    id integer GENERATED ALWAYS AS IDENTITY,
    device_token text DEFAULT 't', title text DEFAULT 'x', content text);
CREATE ROLE app LOGIN;
GRANT INSERT ON announcements TO app;
"""
ANNOUNCE = "INSERT INTO announcements (content) VALUES ('hello')"
WAITING = "SELECT count(*) FROM homing.inbox WHERE NOT already_failed"

Connection = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture(scope="module")
def server() -> Iterator[PrivatePostgres]:
    with skip_if_missing(), PrivatePostgres(fsync=False) as started:
        yield started


@pytest.fixture
async def schema(server: PrivatePostgres) -> None:
    """A database with Homing's schema and a table with the trigger of the how-to."""
    server.query("DROP TABLE IF EXISTS public.announcements")
    server.query("DROP FUNCTION IF EXISTS public.announce")
    server.query("DROP SCHEMA IF EXISTS homing CASCADE")
    if server.query("SELECT 1 FROM pg_roles WHERE rolname = 'app'"):
        server.query("DROP OWNED BY app")
        server.query("DROP ROLE app")
    store = PostgresStore(server.url)
    await store.open()
    await store.migrate()
    await store.close()
    with psycopg.connect(server.url, autocommit=True) as owner:
        owner.execute(TABLE)
        owner.execute(trigger_of_the_page().encode())


def trigger_of_the_page() -> str:
    (found,) = re.findall(r"```sql\n(CREATE FUNCTION announce.*?)```", PAGE.read_text(), re.DOTALL)
    return str(found)


class Application:
    """A session of a role that may only insert into its own table, and the warnings it got."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.warnings: list[str] = []
        connection.add_notice_handler(lambda notice: self.warnings.append(notice.message_primary or ""))

    def run(self, statement: str) -> None:
        self.connection.execute(statement.encode())


@contextmanager
def application(server: PrivatePostgres) -> Iterator[Application]:
    url = server.url.replace("homing_app@", "app@")
    with psycopg.connect(url, autocommit=True) as connection:
        yield Application(connection)


@contextmanager
def locked_inbox(server: PrivatePostgres) -> Iterator[None]:
    with psycopg.connect(server.url) as holder:
        holder.execute("LOCK TABLE homing.inbox IN ACCESS EXCLUSIVE MODE")
        yield
        holder.rollback()


def counted(server: PrivatePostgres, sql: str) -> int:
    [(number,)] = server.query(sql)
    return int(number)


def announcements(server: PrivatePostgres) -> int:
    return counted(server, "SELECT count(*) FROM public.announcements")


@pytest.mark.usefixtures("schema")
@pytest.mark.source("003", "20")
def test_a_role_without_rights_in_the_schema_notifies(server: PrivatePostgres) -> None:
    with application(server) as app:
        app.run(ANNOUNCE)
        assert app.warnings == []
    assert counted(server, WAITING) == 1


@pytest.mark.usefixtures("schema")
@pytest.mark.parametrize(
    "setting", ["statement_timeout = 0", "statement_timeout = '60ms'", "lock_timeout = '20ms'"]
)
@pytest.mark.source("003", "20")
def test_a_locked_inbox_fails_no_statement(server: PrivatePostgres, setting: str) -> None:
    with application(server) as app:
        app.run(f"SET {setting}")
        with locked_inbox(server):
            for _ in range(3):
                app.run(ANNOUNCE)
        assert len(app.warnings) == 3
        name, _, value = setting.partition(" = ")
        kept = app.connection.execute(f"SHOW {name}".encode()).fetchone()
        assert kept == (value.strip("'"),)
        app.run(f"RESET {name}")  # so that a slow machine does not reach it here
        app.run(ANNOUNCE)
        assert len(app.warnings) == 3
    assert announcements(server) == 4
    assert counted(server, WAITING) == 1


@pytest.mark.usefixtures("schema")
def test_a_statement_with_many_rows_waits_once_for_a_locked_inbox(server: PrivatePostgres) -> None:
    with application(server) as app, locked_inbox(server):
        app.run("INSERT INTO announcements (content) SELECT 'x' FROM generate_series(1, 300)")
        assert len(app.warnings) == 300
        assert sum("lock timeout" in warning for warning in app.warnings) == 1
    assert announcements(server) == 300


@pytest.mark.usefixtures("schema")
def test_a_statement_with_many_rows_enqueues_each(server: PrivatePostgres) -> None:
    with application(server) as app:
        app.run("INSERT INTO announcements (content) SELECT 'x' FROM generate_series(1, 1000)")
        assert app.warnings == []
    assert counted(server, WAITING) == 1000


@pytest.mark.usefixtures("schema")
def test_a_locked_table_of_requests_fails_no_statement(server: PrivatePostgres) -> None:
    """`enqueue` also reads that table if the request has a key. It waits once per statement here, too."""
    call = (
        "SELECT homing.enqueue('email', '{}', idempotency_key => n::text) FROM generate_series(1, 300) AS n"
    )
    with psycopg.connect(server.url, autocommit=True) as session, psycopg.connect(server.url) as holder:
        app = Application(session)
        app.run("SET statement_timeout = '60ms'")
        holder.execute("LOCK TABLE homing.requests IN ACCESS EXCLUSIVE MODE")
        app.run(call)
        assert sum("statement_timeout" in warning for warning in app.warnings) == 1
        assert sum("could not obtain lock" in warning for warning in app.warnings) == 299


@pytest.mark.usefixtures("schema")
def test_a_statement_keeps_its_own_time_limit(server: PrivatePostgres) -> None:
    """The inbox is free, so the statement takes longer than its limit for reasons of its own."""
    with application(server) as app:
        app.run("SET statement_timeout = '300ms'")
        with pytest.raises(psycopg.errors.QueryCanceled):
            app.run("INSERT INTO announcements (content) SELECT 'x' FROM generate_series(1, 1000000)")
        assert app.warnings == []
    assert announcements(server) == 0


@pytest.mark.usefixtures("schema")
@pytest.mark.parametrize("time_limit", ["0", "60ms", "1h"])
def test_a_statement_can_be_cancelled(server: PrivatePostgres, time_limit: str) -> None:
    with application(server) as app, locked_inbox(server):
        app.run(f"SET statement_timeout = '{time_limit}'")
        ended: list[BaseException | None] = []

        def insert() -> None:
            try:
                app.run("INSERT INTO announcements (content) SELECT 'x' FROM generate_series(1, 1000000)")
            except psycopg.errors.QueryCanceled as error:
                ended.append(error)

        thread = threading.Thread(target=insert)
        thread.start()
        while not app.warnings and thread.is_alive():
            time.sleep(0.01)
        app.connection.cancel()
        thread.join(10)
        obeyed = not thread.is_alive()
        while thread.is_alive():
            app.connection.cancel()
            thread.join(1)
    assert obeyed, "the first request is enough"
    assert len(ended) == 1
    assert announcements(server) == 0


@pytest.mark.usefixtures("schema")
@pytest.mark.source("003", "20")
def test_a_full_disk_fails_no_statement(server: PrivatePostgres) -> None:
    """The file of the inbox is replaced by /dev/full, which refuses each write with ENOSPC."""
    server.query("TRUNCATE homing.inbox")
    server.query("CHECKPOINT")
    [(path,)] = server.query("SELECT pg_relation_filepath('homing.inbox')")
    file = server.data / path
    server.stop("fast")
    file.unlink()
    file.symlink_to("/dev/full")
    server.start()
    with application(server) as app:
        for _ in range(3):
            app.run(ANNOUNCE)
        assert len(app.warnings) == 3
        assert "No space left on device" in app.warnings[0]
    assert announcements(server) == 3


@pytest.mark.usefixtures("schema")
@pytest.mark.parametrize(
    "damage",
    [
        "ALTER TABLE homing.inbox RENAME TO elsewhere",
        "DROP FUNCTION homing.uuid7",
        "DROP FUNCTION homing.enqueue",
        "DROP SCHEMA homing CASCADE",
        "ALTER FUNCTION public.announce OWNER TO app",
    ],
)
@pytest.mark.source("003", "20")
def test_a_damaged_schema_fails_no_statement(server: PrivatePostgres, damage: str) -> None:
    """In the last case the owner of the trigger has no rights."""
    with application(server) as app:
        app.run(ANNOUNCE)
        if "OWNER" in damage:
            server.query("GRANT CREATE ON SCHEMA public TO app")
        server.query(damage)
        app.run(ANNOUNCE)
        assert len(app.warnings) == 1
    assert announcements(server) == 2
