"""`homing db` and `homing doctor`: is everything there that delivering needs."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from cli_driver import SETTINGS, Cli


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


def test_the_schema_is_made_once_and_checked(cli: Cli) -> None:
    sqlite3.connect(cli.folder / "other.db").execute("CREATE TABLE t (a)").connection.close()
    missing, first, second, fine, json, other = cli.many(
        ["db", "check"],
        ["db", "migrate", "--json"],
        ["db", "migrate"],
        ["db", "check"],
        ["db", "check", "--json"],
        ["db", "check", "--store", "other.db"],
    )
    assert (missing.code, missing.out) == (4, "")
    assert missing.err == "error: store: homing.db does not exist; `homing db migrate` makes it\n"
    version = first.json["schemaVersion"]
    assert len(first.json["applied"]) == version >= 1
    assert second.out == f"homing.db is already at schema version {version}\n"
    assert fine.out.startswith(f"homing.db is fine, at schema version {version}\n")
    assert json.json["ok"] is True
    assert json.json["notifications"] == 0
    assert other.code == 4
    assert "has no Homing schema yet. Run `homing db migrate`." in other.err


def test_a_newer_schema_is_not_touched(cli: Cli) -> None:
    cli.ok("db", "migrate")
    with sqlite3.connect(cli.folder / "homing.db") as connection:
        connection.execute("INSERT INTO homing_schema VALUES (99, '0099_future', 0)")
    connection.close()
    check, stats = cli.many(["db", "check"], ["stats"])
    assert check.code == stats.code == 4
    assert "Upgrade Homing here" in check.err


def test_the_doctor_finds_nothing_wrong_where_nothing_is(cli: Cli) -> None:
    _, page, json = cli.many(["db", "migrate"], ["doctor"], ["doctor", "--json"])
    assert page.code == 0, page
    assert "✗" not in page.out
    assert json.json["ok"] is True
    names = [check["name"] for check in json.json["checks"]]
    for name in (
        "settings",
        "store",
        "writing",
        "clock",
        "breakers",
        "worker",
        "backlog",
        "leases",
        "disk",
        "provider",
    ):
        assert name in names, name


def test_the_doctor_says_what_is_wrong_and_what_to_do(cli: Cli) -> None:
    (cli.folder / "typo.toml").write_text("polcy = 1\n")
    (cli.folder / "homing.toml").write_text(
        SETTINGS + '[providers.gone]\nkind = "file"\npath = "no/such/folder/x.jsonl"\n'
    )
    missing, typo, _ = cli.many(
        ["doctor", "--json"],
        ["doctor", "--config", "typo.toml"],
        ["send", "--to", "a@b.cc", "--channel", "email", "--body", "x"],
    )
    found = {check["name"]: check for check in missing.json["checks"]}
    assert missing.code == 1
    assert "does not exist; `homing db migrate` makes it" in found["store"]["detail"]
    assert typo.code == 1
    assert typo.out.startswith("✗ settings")

    hours_ago = 3 * 3_600_000
    with sqlite3.connect(cli.folder / "homing.db") as connection:
        connection.execute("UPDATE homing_notifications SET due_at = due_at - ?", (hours_ago,))
    connection.close()
    sick = cli("doctor")
    assert sick.code == 1
    assert "✗ worker    the oldest due notification is 3h late → start `homing worker`" in sick.out
    assert "✗ provider  gone (" in sick.out
    assert "its check says no → check its settings" in sick.out
    assert "✓ provider  pigeon" in sick.out


def test_the_doctor_looks_at_every_store_it_is_given(cli: Cli) -> None:
    (cli.folder / "junk.db").write_bytes(b"no database at all, however long this may be" * 100)
    junk, memory = cli.many(["doctor", "--store", "junk.db"], ["doctor", "--store", "memory:"])
    assert junk.code == 1
    assert "✗ store     junk.db is not an SQLite database" in junk.out
    assert memory.code == 0
