"""`homing db uninstall`: takes Homing out of a database that has triggers, roles and data of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.cli_driver import Cli
from support.postgres_servers import skip_if_missing
from support.private_postgres import PrivatePostgres

APPLICATION = """
CREATE ROLE shop LOGIN;
CREATE ROLE shop_reader;
CREATE SCHEMA shop AUTHORIZATION shop;
CREATE TABLE shop.orders (id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer text NOT NULL);
ALTER TABLE shop.orders OWNER TO shop;
CREATE VIEW shop.customers AS SELECT DISTINCT customer FROM shop.orders;
GRANT SELECT ON shop.customers TO shop_reader;
CREATE TABLE shop.audit (at timestamptz DEFAULT now(), what text);
CREATE FUNCTION shop.audited() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO shop.audit (what) VALUES (TG_OP);
    RETURN NEW;
END $$;
CREATE TRIGGER audited AFTER INSERT ON shop.orders FOR EACH ROW EXECUTE FUNCTION shop.audited();
CREATE FUNCTION shop.notified() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    PERFORM homing.enqueue('email', jsonb_build_object('email', NEW.customer), '{"body": "Thank you"}');
    RETURN NEW;
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'order %: %', NEW.id, SQLERRM;
    RETURN NEW;
END $$;
CREATE TRIGGER notified AFTER INSERT ON shop.orders FOR EACH ROW EXECUTE FUNCTION shop.notified();
GRANT INSERT ON shop.audit TO shop;
INSERT INTO shop.orders (customer) VALUES ('before@example.org');
"""
SETTINGS = """
store = "{url}"
[providers.mail]
kind = "file"
path = "sent.jsonl"
channels = ["email"]
"""
ORDER = "INSERT INTO shop.orders (customer) VALUES ('ada@example.org')"


@pytest.fixture(scope="module")
def server() -> Iterator[PrivatePostgres]:
    with skip_if_missing(), PrivatePostgres(fsync=False, cron=True) as started:
        started.query("CREATE EXTENSION pg_cron")
        yield started


class Shop:
    """A database with an application, in which Homing is installed, and the command line."""

    def __init__(self, server: PrivatePostgres, cli: Cli, before: str) -> None:
        self.server, self.cli, self.before = server, cli, before

    def dump(self) -> str:
        return dump_of(self.server)

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        return self.server.query(statement)


@pytest.fixture
def shop(server: PrivatePostgres, tmp_path: Path) -> Iterator[Shop]:
    with psycopg.connect(server.url, autocommit=True) as admin:
        admin.execute(APPLICATION)
    before = dump_of(server)
    (tmp_path / "homing.toml").write_text(SETTINGS.format(url=server.url))
    cli = Cli(tmp_path)
    cli.ok("db", "migrate")
    yield Shop(server, cli, before)
    for statement in (
        "DROP SCHEMA IF EXISTS homing CASCADE",
        "DROP SCHEMA shop CASCADE",
        "DROP OWNED BY shop, shop_reader",
        "DROP ROLE shop, shop_reader",
        "DROP ROLE IF EXISTS acme_reader",
    ):
        server.query(statement)


def dump_of(server: PrivatePostgres) -> str:
    """Returns the schema, without the random key that pg_dump writes since its version 15.14."""
    lines = server.output_of("pg_dump", "--schema-only", server.url).splitlines()
    return "\n".join(line for line in lines if not line.startswith(("\\restrict", "\\unrestrict")))


@pytest.mark.source("003", "414-430")
def test_nothing_of_homing_is_left(shop: Shop) -> None:
    shop.sql("SELECT homing.create_tenant_role('acme', 'acme_reader')")
    shop.sql(
        "SELECT cron.schedule("
        "'process-notifications', '* * * * *', 'SELECT homing.process_notification_queue()')"
    )
    shop.sql("SELECT cron.schedule('of the shop', '0 4 * * *', 'VACUUM')")
    shop.sql(ORDER)
    shop.cli.ok("process")
    shop.sql("DELETE FROM homing.workers")  # as if that run had been a minute ago
    shop.sql(ORDER)
    assert shop.dump() != shop.before

    shown = shop.cli.ok("db", "uninstall").out
    assert "2 notifications, of which 1 is still to be sent" in shown
    assert "cron jobs: process-notifications" in shown
    assert "roles of tenants: acme_reader" in shown
    assert "shop.notified() (trigger notified on shop.orders)" in shown
    assert "--yes" in shown
    assert shop.sql("SELECT count(*) FROM homing.messages") == [(1,)], "a dry run changes nothing"

    done = shop.cli.ok("db", "uninstall", "--yes", "--json").json
    assert done["removed"]
    assert shop.dump() == shop.before
    assert shop.sql("SELECT jobname FROM cron.job") == [("of the shop",)]
    assert shop.sql("SELECT count(*) FROM shop.orders") == [(3,)]
    shop.sql(ORDER)
    assert shop.sql("SELECT count(*) FROM shop.audit") == [(4,)]
    shop.sql("SELECT cron.unschedule('of the shop')")
    assert "has no schema homing" in shop.cli("db", "uninstall").err
    for reading in (["list"], ["health"], ["workers"], ["dead", "list"]):
        shop.cli(*reading)
    assert "has no schema of Homing. `homing db migrate` creates it." in shop.cli("stats").err
    assert "`homing db migrate` creates it" in shop.cli("doctor").out
    assert shop.dump() == shop.before, "a command that only reads does not create it again"


def test_no_statement_fails_while_homing_is_removed(shop: Shop) -> None:
    """The applications go on all the time, each with a short lock_timeout and statement_timeout."""
    stop, failed, made = threading.Event(), list[str](), list[int]()

    def order() -> None:
        number = 0
        with psycopg.connect(shop.server.url.replace("homing_app@", "shop@"), autocommit=True) as session:
            session.execute("SET lock_timeout = '150ms'; SET statement_timeout = '5s'")
            while not stop.is_set():
                try:
                    session.execute(ORDER)
                    number += 1
                except psycopg.Error as error:
                    failed.append(str(error))
        made.append(number)

    applications = [threading.Thread(target=order) for _ in range(3)]
    for thread in applications:
        thread.start()
    try:
        shop.cli.ok("db", "uninstall", "--yes")
    finally:
        stop.set()
        for thread in applications:
            thread.join(60)
    assert failed == []
    assert shop.sql("SELECT count(*) FROM shop.orders") == [(1 + sum(made),)]
    assert shop.dump() == shop.before


def test_nothing_is_removed_if_others_would_suffer(shop: Shop) -> None:
    for statement in (
        "CREATE TABLE homing.customers (id integer)",
        "CREATE VIEW shop.dead AS SELECT * FROM homing.dead_letters",
        "CREATE FUNCTION shop.again() RETURNS void LANGUAGE sql AS 'SELECT homing.cleanup()'",
        "INSERT INTO homing.workers VALUES ('w-1', '1', '{}', '[]', false, 0, homing.now_ms())",
    ):
        shop.sql(statement)
    before = shop.dump()
    refused = shop.cli("db", "uninstall", "--yes")
    assert refused.code == 1
    assert refused.err.splitlines() == [
        "not possible: schema homing contains objects of others: homing.customers",
        "not possible: objects of others depend on it: view shop.dead",
        "not possible: functions call it and would fail: shop.again()",
        "not possible: workers are running: w-1",
        "a worker that was killed, and a run of `homing process`, count for a minute",
        "--force accepts running workers, and functions that would fail",
    ]
    forced = shop.cli("db", "uninstall", "--yes", "--force")
    assert (forced.code, len(forced.err.splitlines())) == (1, 2)
    assert shop.dump() == before
    shop.sql("DROP TABLE homing.customers")
    shop.sql("DROP VIEW shop.dead")
    shop.cli.ok("db", "uninstall", "--yes", "--force")
    shop.sql("DROP FUNCTION shop.again()")
    assert shop.dump() == shop.before


def test_nothing_of_others_in_the_schema_is_dropped(shop: Shop) -> None:
    for statement in (
        "CREATE FUNCTION homing.retry_now(n bigint) RETURNS void LANGUAGE sql AS 'SELECT 1'",
        "CREATE TRIGGER mine AFTER INSERT ON homing.inbox FOR EACH ROW EXECUTE FUNCTION shop.audited()",
        "CREATE INDEX mine ON homing.messages (address)",
        "CREATE POLICY mine ON homing.messages FOR SELECT TO shop_reader USING (true)",
    ):
        shop.sql(statement)
    refused = shop.cli("db", "uninstall", "--yes", "--force")
    assert refused.err.strip() == (
        "not possible: schema homing contains objects of others: homing.retry_now(bigint), "
        "index homing.mine, policy mine on table homing.messages, trigger mine on table homing.inbox"
    )


@pytest.mark.parametrize(
    ("options", "call"),
    [
        ("", "PERFORM HOMING.ENQUEUE('email', '{}');"),
        ("", """PERFORM "homing" . enqueue('email', '{}');"""),
        ("SET search_path = homing, public", "PERFORM enqueue('email', '{}');"),
        ("", "BEGIN PERFORM 1 / 0; EXCEPTION WHEN OTHERS THEN NULL; END; PERFORM homing.cleanup();"),
    ],
)
def test_a_function_that_would_fail_prevents_the_removal(shop: Shop, options: str, call: str) -> None:
    shop.sql(
        f"CREATE FUNCTION shop.careless() RETURNS trigger LANGUAGE plpgsql {options} "
        f"AS $$ BEGIN {call} RETURN NEW; END $$"
    )
    shop.sql(
        "CREATE TRIGGER careless AFTER INSERT ON shop.audit FOR EACH ROW EXECUTE FUNCTION shop.careless()"
    )
    assert shop.cli("db", "uninstall", "--yes").err.splitlines() == [
        "not possible: functions call it and would fail: shop.careless() (trigger careless on shop.audit)",
        "--force accepts running workers, and functions that would fail",
    ]


def test_a_sqlite_file_is_not_uninstalled(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    cli.ok("db", "migrate", "--store", "homing.db")
    assert "delete the file" in cli("db", "uninstall", "--store", "homing.db").err


def test_a_mongodb_database_is_not_uninstalled(tmp_path: Path, mongo_url: str) -> None:
    cli = Cli(tmp_path)
    cli.ok("db", "migrate", "--store", mongo_url)
    refused = cli("db", "uninstall", "--store", mongo_url)
    assert refused.err == "error: only PostgreSQL is uninstalled; drop the database on MongoDB\n"
