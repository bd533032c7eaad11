"""Extreme times and texts on the command line: one clear error, and nothing is stored."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from support.cli_driver import SETTINGS, Cli


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    (tmp_path / "homing.toml").write_text(SETTINGS)
    return Cli(tmp_path)


MAIL = ("send", "--email", "ada@example.org", "--channel", "email", "--body", "x")
LAST = "9999-12-31T23:59:59-12:00"


def test_times_outside_the_limits_are_refused_by_name(cli: Cli) -> None:
    _, *refused, listed = cli.many(
        ["db", "migrate"],
        [*MAIL, "--send-at", LAST],
        [*MAIL, "--expires-at", LAST],
        [*MAIL, "--send-at", "0001-01-01T00:00:00+12:00"],
        [*MAIL, "--in", "36501d"],
        [*MAIL, "--in", "9" * 400],
        ["list", "--json"],
    )
    names = ("sendAt", "expiresAt", "sendAt", "--in", "--in")
    for result, name in zip(refused, names, strict=True):
        assert result.code == 2, result
        assert f"{name}: " in result.err, result
    assert listed.json["items"] == []


def test_filters_accept_any_time(cli: Cli) -> None:
    _, _, since, until = cli.many(
        ["db", "migrate"],
        [*MAIL],
        ["list", "--json", "--since", "0001-01-01T00:00:00+12:00"],
        ["list", "--json", "--until", LAST],
    )
    assert (len(since.json["items"]), len(until.json["items"])) == (1, 1)


def test_an_argument_that_is_not_utf_8_is_refused_by_name(cli: Cli) -> None:
    cli("db", "migrate")
    for argv, name in (
        ((*MAIL, "--type", "a\udcffb"), "type"),
        ((*MAIL, "--metadata", '{"k": "\udcff"}'), "--metadata"),
        (("list", "--type", "\udcff"), "type"),
        (("status", "\udcff"), ""),
    ):
        result = cli(*argv)
        assert result.code in (1, 2, 3, 4), result
        assert name in result.err, result
    assert cli("list", "--json").json["items"] == []


def test_a_row_with_an_absurd_time_can_be_listed_and_explained(cli: Cli) -> None:
    _, sent = cli.many(["db", "migrate"], [*MAIL, "--json"])
    id = sent.json["notificationIds"][0]
    with sqlite3.connect(cli.folder / "homing.db") as own:
        for name in ("due_at", "send_at", "expires_at", "updated_at"):
            own.execute(f"UPDATE homing_notifications SET {name} = ?", (2**63 - 1,))
    own.close()
    for result in cli.many(["list"], ["list", "--json"], ["status", id], ["explain", id], ["health"]):
        assert "Traceback" not in result.err
        assert result.code in (0, 1), result


def test_a_rule_with_an_absurd_duration_is_refused(cli: Cli) -> None:
    _, refused, shown = cli.many(
        ["db", "migrate"],
        ["policy", "set", "r", "--timeout", str(2**63), "--who", "me", "--why", "x"],
        ["policy", "show", "--type", "order", "--channel", "email"],
    )
    assert refused.code == 2, refused
    assert "--timeout: " in refused.err
    assert shown.code == 0, shown


def test_a_csv_row_with_an_extreme_value_is_one_rejection(cli: Cli) -> None:
    rows = (
        b"recipient,body,send_at,metadata\n"
        b"ada@example.org,x,,\n"
        b"bob@example.org,x,9999-12-31T23:59:59-12:00,\n"
        b"cy@example.org,\xff,,\n"
        b'dan@example.org,x,,"{""k"": ""\\ud800""}"\n'
        b'eve@example.org,x,,"{""k"": ""\xff""}"\n'
        b"fay@example.org,x,,\n"
    )
    (cli.folder / "people.csv").write_bytes(rows)
    _, sent, listed = cli.many(
        ["db", "migrate"], ["send", "--csv", "people.csv", "--channel", "email"], ["list", "--json"]
    )
    assert sent.out == "6 rows: 2 accepted, 4 rejected\n"
    told = [line for line in sent.err.splitlines() if line.startswith("line ")]
    assert [line.split(": ")[:2] for line in told] == [
        ["line 3", "sendAt"],
        ["line 4", "body"],
        ["line 5", "metadata"],
        ["line 6", "metadata"],
    ]
    assert len(listed.json["items"]) == 2
