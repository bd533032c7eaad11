"""`homing db backup`: copies a SQLite store to a new file that works like the store."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.cli_driver import Cli


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


MAIL = ("send", "--email", "ada@example.org", "--channel", "email", "--body", "Hello")


def test_a_backup_has_the_notifications_of_the_store(cli: Cli) -> None:
    cli.ok(*MAIL)
    done = cli.ok("db", "backup", "copy.db")
    assert done.out.startswith("homing.db is backed up to copy.db: 1 notification, ")
    assert done.out.endswith("MB, verified\n")
    listed = cli.ok("list", "--json", "--store", "copy.db").json
    assert [one["status"] for one in listed["items"]] == ["pending"]
    json = cli.ok("db", "backup", "second.db", "--json").json
    assert (json["file"], json["notifications"]) == ("second.db", 1)


def test_an_existing_file_is_not_overwritten(cli: Cli) -> None:
    cli.ok(*MAIL)
    refused = cli("db", "backup", "homing.db")
    assert (refused.code, refused.out) == (2, "")
    assert "never overwrites" in refused.err
    assert cli.ok("list", "--json").json["items"]


@pytest.mark.parametrize(
    ("store", "advice"),
    [("postgresql://localhost/app", "pg_dump"), ("memory:", "SQLite file"), ("missing.db", "missing.db")],
)
def test_only_an_existing_sqlite_file_can_be_backed_up(cli: Cli, store: str, advice: str) -> None:
    refused = cli("db", "backup", "copy.db", "--store", store)
    assert refused.code in (2, 4)
    assert advice in refused.err
    assert not (cli.folder / "copy.db").exists()
