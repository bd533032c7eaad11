"""`homing sinks` on the real command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.cli_driver import SETTINGS, Cli


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    (tmp_path / "homing.toml").write_text(SETTINGS)
    return Cli(tmp_path)


def test_sinks_are_listed_with_their_waiting_events_and_can_be_removed(cli: Cli) -> None:
    reading = cli.many(["list"], ["stats"], ["providers", "list"], ["sinks", "list", "--json"])
    assert reading[-1].json == {"items": []}
    with (cli.folder / "homing.toml").open("a") as file:
        file.write('\n[sinks.more]\nkind = "log"\nevents = ["StatusChanged"]\n')
    cli.ok("send", "--to", "ada@example.org", "--channel", "email", "--body", "Hello")
    table, listed = cli.many(["sinks", "list"], ["sinks", "list", "--json"])
    found = {one["name"]: one for one in listed.json["items"]}
    assert (found["more"]["kind"], found["more"]["events"], found["more"]["waiting"]) == (
        "log",
        ["StatusChanged"],
        1,
    )
    assert "StatusChanged" in table.out
    refused = cli("sinks", "remove", "more")
    assert refused.code == 2
    assert "add --yes" in refused.err
    assert cli.ok("sinks", "remove", "more", "--yes").out == "removed more and 1 waiting event\n"
    assert "more" not in {one["name"] for one in cli.ok("sinks", "list", "--json").json["items"]}
    assert cli("sinks", "remove", "more", "--yes").code == 3
    [*_, entry] = cli.ok("audit", "list", "--shared", "--json").json["items"][:1]
    assert (entry["action"], entry["target"]) == ("sink.remove", "more")


def test_a_retry_of_an_unknown_sink_is_refused_and_not_recorded(cli: Cli) -> None:
    cli.ok("send", "--to", "ada@example.org", "--channel", "email", "--body", "Hello")
    unknown = cli("sinks", "retry", "none")
    assert unknown.code == 3
    assert "there is no sink 'none'" in unknown.err
    assert "sink.retry" not in {
        one["action"] for one in cli.ok("audit", "list", "--shared", "--json").json["items"]
    }
    (known, *_) = cli.ok("sinks", "list", "--json").json["items"]
    assert cli.ok("sinks", "retry", known["name"], "--json").json["releasedEvents"] == 0


def test_doctor_reports_a_sink_that_cannot_be_built(cli: Cli) -> None:
    with (cli.folder / "homing.toml").open("a") as file:
        file.write('\n[sinks.wrong]\nkind = "telegraph"\n')
    found = {one["name"]: one for one in cli("doctor", "--json").json["checks"]}
    assert not found["sinks"]["ok"]
    assert "telegraph" in found["sinks"]["detail"]
    assert cli.ok("list", "--json").json["items"] == []
