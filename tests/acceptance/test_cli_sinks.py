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
    reading = cli.many(
        ["db", "migrate"], ["list"], ["stats"], ["providers", "list"], ["sinks", "list", "--json"]
    )
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
    cli.ok("db", "migrate")
    assert cli.ok("list", "--json").json["items"] == []


def test_the_backlog_of_a_sink_is_shown_everywhere(cli: Cli) -> None:
    with (cli.folder / "homing.toml").open("a") as file:
        file.write(
            '\n[thresholds]\nsink_backlog = 0\n[sinks.my_events]\nkind = "log"\nevents = ["StatusChanged"]\n'
        )
    cli.ok("send", "--to", "ada@example.org", "--channel", "email", "--body", "Hello")
    table, listed, health, health_json, doctor = cli.many(
        ["sinks", "list"], ["sinks", "list", "--json"], ["health"], ["health", "--json"], ["doctor", "--json"]
    )
    assert "OLDEST" in table.out
    found = {one["name"]: one for one in listed.json["items"]}
    assert found["my_events"]["oldestAt"] is not None
    assert found["log"]["oldestAt"] is None
    assert health.code == health_json.code == 1
    assert "1 events of the sink my_events are not published" in health.out
    checks = {one["metric"]: one for one in health_json.json["thresholds"]}
    assert checks["sinkBacklog:my_events"]["exceeded"]
    assert not checks["sinkBacklog:log"]["exceeded"]
    assert not checks["sinkLagMs:my_events"]["exceeded"]
    events = {one["name"]: one for one in doctor.json["checks"]}["events"]
    assert not events["ok"]
    assert "too many or too old for my_events" in events["detail"]


def test_new_kinds_of_sinks_are_durable_listed_examined_and_removed(cli: Cli) -> None:
    with (cli.folder / "homing.toml").open("a") as file:
        file.write(
            """
            [sinks.backend]
            kind = "webhook"
            url = "https://127.0.0.1:1/events"
            secret = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
            [sinks.servicebus]
            connection_string = "Endpoint=sb://127.0.0.1/;SharedAccessKeyName=p;SharedAccessKey=hush;EntityPath=alerts"
            base_url = "https://127.0.0.1:1"
            """
        )
    cli.ok("send", "--to", "ada@example.org", "--channel", "email", "--body", "Hello")
    listed, doctor = cli.many(["sinks", "list", "--json"], ["doctor", "--json"])
    found = {one["name"]: (one["kind"], one["durable"], one["events"]) for one in listed.json["items"]}
    assert found["backend"] == ("webhook", True, ["Alert", "NotificationFailed"])
    assert found["servicebus"] == ("servicebus", True, ["NotificationFailed"])
    sinks = {one["detail"].partition(":")[0]: one for one in doctor.json["checks"] if one["name"] == "sink"}
    assert sinks["log"]["ok"]
    assert not sinks["backend"]["ok"]
    assert "refused_address" in sinks["backend"]["detail"]
    assert not sinks["servicebus"]["ok"]
    assert "connect" in sinks["servicebus"]["detail"]
    assert "hush" not in doctor.out
    assert cli.ok("sinks", "remove", "backend", "--yes").out == "removed backend and 0 waiting events\n"
