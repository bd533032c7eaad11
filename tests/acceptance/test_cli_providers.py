"""`homing providers`: list, test, open, close, auto, as an operator runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.cli_driver import Cli

SETTINGS = """\
store = "homing.db"
[routes]
sms = ["hawk", "pigeon"]
[providers.pigeon]
kind = "file"
path = "pigeon.jsonl"
channels = ["sms", "email"]
weight = 1
max_in_flight = 7
rate_per_second = 2.5
[providers.pigeon.breaker]
failures = 3
open_ms = "1h"
[providers.hawk]
kind = "file"
path = "hawk.jsonl"
channels = ["sms"]
weight = 3
breaker = "off"
[providers.lost]
kind = "file"
path = "no/such/folder/lost.jsonl"
channels = ["push"]
"""
ADDRESS = "+4930123456"


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    (tmp_path / "homing.toml").write_text(SETTINGS)
    return Cli(tmp_path)


def test_the_list_shows_routes_weights_limits_and_breakers(cli: Cli) -> None:
    page, data = cli.many(["providers", "list"], ["providers", "list", "--json"])
    lines = [line.split() for line in page.out.splitlines()]
    assert lines[0] == [
        "PROVIDER",
        "KIND",
        "ROUTES",
        "WEIGHT",
        "IN",
        "FLIGHT",
        "RATE",
        "OPENS",
        "AFTER",
        "BREAKER",
    ]
    assert lines[1] == [
        "pigeon",
        "file",
        "sms",
        "2,",
        "email",
        "1",
        "1",
        "7",
        "2.5/s",
        "3",
        "for",
        "1h",
        "closed",
    ]
    assert lines[2] == ["hawk", "file", "sms", "1", "3", "128", "off", "closed"]
    assert lines[3] == ["lost", "file", "push", "1", "128", "10", "for", "2m", "closed"]
    pigeon, hawk, _ = data.json
    assert pigeon == {
        "id": "pigeon",
        "kind": "file",
        "channels": ["sms", "email"],
        "routes": {"sms": 2, "email": 1},
        "weight": 1,
        "breaker": {"phase": "closed"},
        "breakerPolicy": {
            "failures": 3,
            "openMs": 3_600_000,
            "healthEveryMs": 30_000,
            "rampMs": 60_000,
            "rampPerSecond": 10.0,
        },
        "maxInFlight": 7,
        "ratePerSecond": 2.5,
        "rateBurst": 2,
    }
    assert (hawk["routes"], hawk["weight"]) == ({"sms": 1}, 3)


def test_a_forced_breaker_is_shown_with_who_and_why_until_it_is_returned_to_automatic(cli: Cli) -> None:
    opened, listed, doctor, sent, processed, closed, back, after = cli.many(
        ["providers", "open", "pigeon", "--who", "ada", "--why", "maintenance"],
        ["providers", "list", "--json"],
        ["doctor", "--json"],
        ["send", "--to", "ada@example.org", "--channel", "email", "--body", "Hello", "--json"],
        ["process", "--json"],
        ["providers", "close", "pigeon", "--who", "bob", "--json"],
        ["providers", "auto", "pigeon"],
        ["providers", "list", "--json"],
    )
    assert opened.code == 0
    assert opened.out.startswith("pigeon held open by ada ")
    assert opened.out.endswith(": maintenance\n")
    assert "return it to automatic control with `homing providers auto pigeon`" in opened.err
    breaker = listed.json[0]["breaker"]
    assert {**breaker, "since": "…"} == {
        "phase": "open",
        "forced": True,
        "by": "ada",
        "why": "maintenance",
        "since": "…",
    }
    assert "pigeon is held open by ada" in doctor.out
    assert sent.code == 0
    assert processed.json["processed"] == 0
    assert (closed.json["breaker"]["phase"], closed.json["breaker"]["by"]) == ("closed", "bob")
    assert back.out == "pigeon closed\n"
    assert after.json[0]["breaker"]["phase"] == "closed"
    assert "forced" not in after.json[0]["breaker"]


def test_a_test_checks_each_provider_and_reports_errors(cli: Cli) -> None:
    everyone, data, one = cli.many(
        ["providers", "test"], ["providers", "test", "--json"], ["providers", "test", "hawk"]
    )
    assert everyone.code == data.code == 1
    assert "✓ pigeon usable\n✓ hawk usable\n✗ lost " in everyone.out
    assert [(p["provider"], p["usable"]) for p in data.json] == [
        ("pigeon", True),
        ("hawk", True),
        ("lost", False),
    ]
    assert (one.code, one.out) == (0, "✓ hawk usable\n")
    assert not (cli.folder / "hawk.jsonl").exists() or (cli.folder / "hawk.jsonl").read_text() == ""


def test_a_test_message_is_sent_only_after_confirmation(cli: Cli) -> None:
    unsure, sent, data, listed = cli.many(
        ["providers", "test", "hawk", "--send", ADDRESS],
        ["providers", "test", "hawk", "--send", ADDRESS, "--yes"],
        ["providers", "test", "hawk", "--send", ADDRESS, "--yes", "--json"],
        ["list", "--json"],
    )
    assert unsure.code == 2
    assert "--yes: cannot ask for confirmation" in unsure.err
    assert sent.code == 0
    assert sent.out.startswith("accepted by hawk over sms in ")
    assert (data.json["outcome"], data.json["provider"], data.json["channel"]) == ("accepted", "hawk", "sms")
    assert ADDRESS not in sent.out + data.out
    assert len((cli.folder / "hawk.jsonl").read_text().splitlines()) == 2
    assert listed.json["items"] == []


def test_a_test_message_that_was_not_accepted_gives_exit_code_1(cli: Cli) -> None:
    result = cli("providers", "test", "lost", "--send", "device-token-1", "--yes")
    assert result.code == 1
    assert "by lost over push in " in result.out


def test_an_impossible_command_suggests_what_to_do_instead(cli: Cli) -> None:
    cases = [
        (
            ["open", "nobody"],
            "provider: 'nobody' is not configured; configured providers: pigeon, hawk, lost",
        ),
        (["test", "nobody"], "provider: 'nobody' is not configured"),
        (["test", "--send", ADDRESS], "NAME: is missing; name the provider"),
        (["test", "hawk", "--channel", "sms"], "--channel: works only with --send"),
        (["test", "pigeon", "--send", ADDRESS, "-y"], "channel: is missing; pigeon serves sms, email"),
        (["test", "hawk", "--send", ADDRESS, "-y", "--channel", "email"], "email is not served by hawk"),
        (["test", "hawk", "--send", ADDRESS, "--channel", "fax"], "--channel: "),
    ]
    results = cli.many(*[["providers", *argv] for argv, _ in cases])
    for result, (_, says) in zip(results, cases, strict=True):
        assert result.code == 2, result
        assert says in result.err, result


def test_a_split_is_overridden_for_a_time_and_shown(cli: Cli) -> None:
    to = ["send", "--to", ADDRESS, "--channel", "sms", "--body", "Hello", "--json"]
    split, listed, providers, sent, table, reset, again = cli.many(
        ["providers", "split", "sms", "pigeon=1", "--for", "2h", "--why", "hawk is slow", "--who", "ada"],
        ["providers", "splits", "--json"],
        ["providers", "list"],
        to,
        ["providers", "splits"],
        ["providers", "reset-split", "sms", "--json"],
        ["providers", "reset-split", "sms"],
    )
    assert split.code == 0
    assert split.out.startswith("sms hawk 0 %, pigeon 100 %, by ada, ends in ")
    assert split.out.endswith(": hawk is slow\n")
    assert "homing providers reset-split sms" in split.err
    (view,) = listed.json
    assert (view["shares"], view["weights"]) == ({"hawk": 0.0, "pigeon": 100.0}, {"hawk": 3, "pigeon": 1})
    assert "sms is split: hawk 0, pigeon 1 by ada" in providers.out
    assert "hawk is slow" in table.out
    id = sent.json["notificationIds"][0]
    shown, explained = cli.many(["status", id, "--json"], ["explain", id])
    assert shown.json["provider"] == "pigeon"
    assert "accepted while its channel was split hawk 0, pigeon 1" in explained.out
    assert "override" not in reset.json
    assert (again.code, again.err.strip()) == (3, "error: the split of sms is not overridden")


def test_a_split_that_makes_no_sense_is_refused(cli: Cli) -> None:
    one, reason, word, twice, time = cli.many(
        ["providers", "split", "push", "lost=1", "--for", "1h", "--why", "x"],
        ["providers", "split", "sms", "hawk=1", "--for", "1h"],
        ["providers", "split", "sms", "hawk", "--for", "1h", "--why", "x"],
        ["providers", "split", "sms", "hawk=1", "hawk=2", "--for", "1h", "--why", "x"],
        ["providers", "split", "sms", "hawk=1", "--why", "x"],
    )
    assert "push has 1 provider; a split needs two" in one.err
    assert "why: is missing" in reason.err
    assert "write it like twilio=20" in word.err
    assert "names hawk twice" in twice.err
    assert time.code != 0
