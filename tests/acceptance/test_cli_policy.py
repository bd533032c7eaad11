"""`homing policy`: effective rules, their delays, changes, and simulations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.cli_driver import Cli

VECTORS = Path(__file__).parents[1] / "vectors" / "backoff.json"


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


def test_the_table_has_the_exact_delays_of_every_preset(cli: Cli) -> None:
    everything, simple, fixed, human, wrong = cli.many(
        ["policy", "table", "--json"],
        ["policy", "table", "simple", "--json"],
        ["policy", "table", "fixed", "--json"],
        ["policy", "table", "fixed"],
        ["policy", "table", "daily"],
    )
    rows: list[dict[str, Any]] = everything.json
    assert list(rows[0]) == ["policy", "attempt", "minMs", "maxMs", "cumulativeMinMs"]
    by_policy: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_policy.setdefault(row["policy"], []).append(row)
    formulas = json.loads(VECTORS.read_text())["formulas"]
    for name, exact in formulas["a_priority"]["classes"].items():
        mine = by_policy[f"priority/{name.lower()}"]
        wanted = [row for row in exact["rows"] if row["n"] <= exact["max_retries"]]
        assert [_bounds(row) for row in mine] == [
            (row["min_ms"], row["max_ms"], row["cumulative_min_ms"]) for row in wanted
        ], name
    minutes = 60_000
    assert [row["minMs"] for row in by_policy["simple/default"]] == [5 * minutes, 10 * minutes]
    assert [row["minMs"] for row in by_policy["simple/incident"]] == [n * minutes for n in (10, 20, 40, 80)]
    assert [_bounds(row) for row in by_policy["broker/default"]] == [
        (2_000, 3_000, 2_000),
        (4_000, 5_000, 6_000),
        (8_000, 9_000, 14_000),
    ]
    assert [row["minMs"] for row in by_policy["channel/sms/auth"]] == [3_000, 6_000, 12_000]
    assert simple.json == [row for row in rows if row["policy"].startswith("simple/")]
    assert [row["cumulativeMinMs"] for row in fixed.json] == [n * minutes for n in (1, 6, 21, 81, 441)]
    assert [line.split()[-3:] for line in human.out.splitlines()[1:]][3] == ["1h", "1h", "21m"]
    assert wrong.code == 2
    names = "priority, simple, channel, fixed, broker"
    assert wrong.err == f"error: preset: is 'daily'; it must be one of {names}\n"


def test_a_rule_is_set_changed_and_removed_at_run_time_with_its_history(cli: Cli) -> None:
    first = ["policy", "set", "nights", "--type", "incident", "--max-attempts", "7", "--base", "10m"]
    added, changed, shown, shown_json, other, removed, again, history, history_json = cli.many(
        [*first, "--cap", "2h", "--who", "eva", "--why", "long nights", "--json"],
        ["policy", "set", "nights", "--steps", "1m,5m,1h", "--jitter", "none", "--who", "eva"],
        ["policy", "show", "--type", "incident", "--priority", "high"],
        ["policy", "show", "--type", "incident", "--priority", "high", "--json"],
        ["policy", "show", "--type", "other", "--mode", "bulk", "--json"],
        ["policy", "unset", "nights", "--who", "max"],
        ["policy", "unset", "nights"],
        ["policy", "history"],
        ["policy", "history", "--json"],
    )
    assert added.json["before"] is None
    assert added.json["after"] == {
        "name": "nights",
        "type": "incident",
        "policy": {"maxAttempts": 7, "baseMs": 600_000, "capMs": 7_200_000},
    }
    assert "before    type=incident: max_attempts=7 base_ms=10m cap_ms=2h" in changed.out
    assert (
        "after     type=incident: max_attempts=7 backoff=fixed base_ms=10m steps_ms=1m, 5m, 1h" in changed.out
    )
    assert "rule      nights" in shown.out
    assert "steps_ms         1m, 5m, 1h        rule nights" in shown.out
    assert "timeout_ms       15s               mode priority" in shown.out
    assert "waits     1m → 5m → 1h → 1h → 1h → 1h, then a dead letter" in shown.out
    assert shown_json.json["policy"]["maxAttempts"] == 7
    assert shown_json.json["sources"]["maxAttempts"] == "rule nights"
    assert (other.json["rule"], other.json["presetRule"], other.json["mode"]) == (None, "medium", "bulk")
    assert "after     removed" in removed.out
    assert again.code == 2
    assert "rule: 'nights' does not exist" in again.err
    assert [(c["who"], c["why"]) for c in history_json.json] == [
        ("max", ""),
        ("eva", ""),
        ("eva", "long nights"),
    ]
    assert len(history.out.splitlines()) == 4


def test_a_contradictory_policy_changes_nothing(cli: Cli) -> None:
    cases = {
        "cap_ms: is 60000, below base_ms 3600000": ["--base", "1h", "--cap", "1m"],
        "max_attempts: is 0; it must be from 1 to 1000": ["--max-attempts", "0"],
        "--base: is -1s; it cannot be negative": ["--base", "-1s"],
        "--steps: is 'x'; give a duration": ["--steps", "1m,x"],
        "factor: is 0.5; it must be from 1 to 100": ["--factor", "0.5"],
        "jitter_ratio: is 2.0; it must be from 0 to 1": ["--jitter-ratio", "2"],
        "wobble": ["--jitter", "wobble"],
        "max_age_ms: is 1000, below timeout_ms": ["--max-age", "1s"],
        "--channel: is 'fax'; it must be one of sms": ["--channel", "fax"],
        "r: nothing to set": [],
    }
    results = cli.many(
        *[["policy", "set", "r", *argv] for argv in cases.values()], ["policy", "history", "--json"]
    )
    for said, result in zip(cases, results, strict=False):
        assert result.code == 2, result
        assert said in result.err, result
    assert results[-1].json == []


def test_simulate_runs_an_outage_and_draws_it(cli: Cli) -> None:
    small = ["policy", "simulate", "--rate", "1/s", "--for", "5m", "--outage", "3m", "--outage-at", "1m"]
    page, json, short, expired, kind, rate, share, which, file = cli.many(
        [*small, "--svg", "out.svg"],
        [*small, "--json"],
        [*small, "--preset", "broker", "--max-attempts", "2", "--outage-share", "0.9", "--json"],
        [*small, "--max-age", "90s", "--timeout", "5s", "--json"],
        [*small, "--outage-kind", "haunted"],
        [*small, "--rate", "fast"],
        [*small, "--outage-share", "7"],
        [*small, "--outage-of", "tertiary"],
        [*small, "--svg", "no/such/folder/out.svg"],
    )
    assert "Policy: preset priority" in page.out
    assert "primary down for 3m, starting at 1m" in page.out
    assert "How long delivery took" in page.out
    assert "recovery peak at primary" in page.out
    assert any(block in page.out for block in "▂▃▄▅▆▇█")
    assert (cli.folder / "out.svg").read_text().startswith("<svg")
    report = json.json
    assert report["notifications"] == sum(ending["count"] for ending in report["endings"])
    assert report["delivery"]["p50"] <= report["delivery"]["p99"]
    dead = {ending["reason"]: ending["count"] for ending in short.json["endings"]}
    assert dead.get("RETRIES_EXHAUSTED", 0) > 0
    late = {ending["reason"] for ending in expired.json["endings"]}
    assert "PROVIDER_UNAVAILABLE" in late
    for result, said in (
        (kind, "--outage-kind: is 'haunted'; it must be one of down, throttle, slow"),
        (rate, "--rate: is 'fast'; give a rate like 20/s"),
        (share, "outages[0].share: is 7.0; it must be above 0 and at most 1"),
        (which, "--outage-of: is 'tertiary'; it must be one of primary, secondary or both"),
        (file, "--svg: no/such/folder/out.svg: No such file"),
    ):
        assert result.code == 2, result
        assert said in result.err, result


def _bounds(row: dict[str, Any]) -> tuple[int, int, int]:
    return row["minMs"], row["maxMs"], row["cumulativeMinMs"]


def test_simulate_refuses_a_number_of_providers_that_it_does_not_have(cli: Cli) -> None:
    for number in ("0", "3"):
        refused = cli("policy", "simulate", "--providers", number)
        assert refused.code == 2
        assert f"providers: is {number}; it must be 1 or 2" in refused.err
