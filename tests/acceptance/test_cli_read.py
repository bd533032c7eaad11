"""`status`, `list`, `waiting`, `retry-info`, `explain`, `stats`, `health`: reading changes nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.cli_driver import SETTINGS, Cli, Ids, history

RULES = """
[[rules]]
name = "slow"
type = "slow"
max_attempts = 5
base_ms = "10m"
cap_ms = 0
jitter = "none"
"""


class CliWithHistory(Cli):
    """A folder whose store has a notification of every status."""

    ids: Ids


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> CliWithHistory:
    folder: Path = tmp_path_factory.mktemp("past")
    past = CliWithHistory(folder)
    past.ids = history(folder)
    (folder / "homing.toml").write_text(SETTINGS + RULES)
    return past


def test_status_shows_the_state_with_a_masked_recipient(past: CliWithHistory) -> None:
    sent, dead, shown, json, unknown = past.many(
        ["status", past.ids["sent0"]],
        ["status", past.ids["bad1"]],
        ["status", past.ids["bad1"], "--show-recipients"],
        ["status", past.ids["bad1"], "--json"],
        ["status", "01890000-0000-7000-8000-000000000000"],
    )
    assert "status        sent\n" in sent.out
    assert "to            a•••@example.org\n" in sent.out
    assert "(BAD_RECIPIENT)" in dead.out
    assert "last error    no such mailbox: n•••@example.org\n" in dead.out
    assert "nobody1@" not in dead.out + json.out
    assert "no such mailbox: nobody1@example.org" in shown.out
    assert json.json["recipient"] == {"email": "n•••@example.org"}
    assert json.json["status"] == "failed"
    assert json.json["attemptCount"] == 1
    assert json.json["providerNames"] == ["pigeon"]
    assert (unknown.code, unknown.out) == (3, "")
    assert unknown.err.startswith("error: there is no notification 01890000-")


def test_a_batch_is_counted_by_status(past: CliWithHistory) -> None:
    (shown,) = past.many(["status", past.ids["bad1"], "--json"])
    table, json, unknown = past.many(
        ["batch", shown.json["batchId"]],
        ["batch", shown.json["batchId"], "--json"],
        ["batch", "01890000-0000-7000-8000-000000000000"],
    )
    assert json.json["statuses"] == {"failed": 1}
    assert table.out.splitlines()[-1].split() == ["failed", "1"]
    assert (unknown.code, unknown.out) == (3, "")


def test_list_filters_and_pages(past: CliWithHistory) -> None:
    everything, failed, slow, first, pushes, table = past.many(
        ["list", "--json"],
        ["list", "--json", "--status", "failed", "--reason", "bad_recipient"],
        ["list", "--json", "--type", "slow", "--channel", "email", "--since", "1h"],
        ["list", "--json", "--limit", "6"],
        ["list", "--channel", "push"],
        ["list", "--limit", "2"],
    )
    tagged, wrong = past.many(
        ["list", "--json", "--metadata", "entry_id=42"], ["list", "--metadata", "entry_id"]
    )
    assert tagged.json["items"] == []
    assert (wrong.code, "--metadata: is 'entry_id'; it must be KEY=VALUE" in wrong.err) == (2, True)
    ids = [item["id"] for item in everything.json["items"]]
    assert ids == sorted(past.ids.values(), reverse=True), "newest first"
    assert {item["id"] for item in failed.json["items"]} == {past.ids["bad1"], past.ids["bad2"]}
    assert [item["id"] for item in slow.json["items"]] == [past.ids["waiting"]]
    cursor = first.json["cursor"]
    batch = everything.json["items"][0]["batchId"]
    rest, one = past.many(["list", "--json", "--cursor", cursor], ["list", "--json", "--batch", batch])
    assert [item["id"] for item in first.json["items"] + rest.json["items"]] == ids
    assert [item["id"] for item in one.json["items"]] == ids[:1]
    assert pushes.err == "no notifications found\n"
    assert table.out.splitlines()[0].split()[:4] == ["ID", "STATUS", "CHANNEL", "TYPE"]
    assert "for more, add --cursor" in table.err
    assert "later@" not in table.out + everything.out


@pytest.mark.source("001", "393-398")
@pytest.mark.source("003", "357-368")
def test_what_waits_is_listed_by_its_last_attempt_and_grouped_by_its_error(past: CliWithHistory) -> None:
    listed, groups, wrong = past.many(
        ["waiting", "--by", "last-attempt", "--json"],
        ["dead", "groups", "--status", "retrying", "--json"],
        ["waiting", "--by", "name"],
    )
    table, no_status = past.many(
        ["dead", "groups", "--status", "retrying"], ["dead", "groups", "--status", "sent"]
    )
    assert table.out.split("\n")[0].split() == ["COUNT", "CODE", "NEWEST", "EXAMPLE", "ERROR"]
    assert (no_status.code, no_status.err) == (
        2,
        "error: --status: is 'sent'; it must be failed or retrying\n",
    )
    assert [one["id"] for one in listed.json] == [past.ids["waiting"]]
    (item,) = listed.json
    assert {"type", "attemptCount", "lastAttemptAt", "lastError"} <= set(item)
    (group,) = groups.json
    assert (group["lastError"], group["count"]) == (item["lastError"], 1)
    assert (wrong.code, "it must be due or last-attempt" in wrong.err) == (2, True)


def test_waiting_and_retry_info_accept_other_settings_and_change_nothing(past: CliWithHistory) -> None:
    id = past.ids["waiting"]
    waiting, table, ready, info, other, shown, bad = past.many(
        ["waiting", "--json"],
        ["waiting"],
        ["waiting", "--json", "--delay", "0"],
        ["retry-info", id, "--json"],
        ["retry-info", id, "--json", "--max-attempts", "1", "--delay", "5m"],
        ["retry-info", id],
        ["retry-info", id, "--delay", "-5m"],
    )
    assert [item["id"] for item in waiting.json] == [id]
    assert "t•••@example.org" in table.out
    assert "in 9m" in table.out
    assert ready.json == []
    assert list(info.json) == [
        "notificationId",
        "currentAttempts",
        "maxAttempts",
        "retriesRemaining",
        "hasMoreRetries",
        "lastAttemptAt",
        "nextRetryAt",
        "isReadyForRetry",
        "status",
        "errorMessage",
        "currentDelayMinutes",
        "nextDelayMinutes",
        "moves",
        "spent",
    ]
    assert info.json["maxAttempts"] == 5
    assert (info.json["currentDelayMinutes"], info.json["nextDelayMinutes"]) == (10, 20)
    assert info.json["errorMessage"] == "busy, t•••@example.org waits"
    assert (other.json["maxAttempts"], other.json["retriesRemaining"]) == (1, 0)
    assert other.json["currentDelayMinutes"] == 5
    assert "retries remaining  4\n" in shown.out
    assert bad.code == 2
    assert "--delay: is -5m" in bad.err


def test_explain_shows_the_past_the_policy_and_the_next_step(past: CliWithHistory) -> None:
    page, json, recovered, doubt, unknown = past.many(
        ["explain", past.ids["waiting"]],
        ["explain", past.ids["waiting"], "--json"],
        ["explain", past.ids["recovered"]],
        ["explain", past.ids["doubt"]],
        ["explain", "nonsense"],
    )
    assert "verdict   1 attempt so far: busy, t•••@example.org waits" in page.out
    assert "next      attempt 2 of 5 at " in page.out
    assert "attempt 1  pigeon  transient in " in page.out
    assert "[503] busy, t•••@example.org waits" in page.out
    assert "Its policy, from rule slow" in page.out
    assert "base_ms          10m               rule slow" in page.out
    assert "timeout_ms       30s               mode standard" in page.out
    assert "waits     10m → 20m → 40m → 1h 20m, then a dead letter" in page.out

    found = json.json
    assert found["notification"]["id"] == past.ids["waiting"]
    assert [a["outcome"] for a in found["attempts"]] == ["transient"]
    assert found["rule"] == "slow"
    assert (found["policy"]["baseMs"], found["sources"]["baseMs"]) == (600_000, "rule slow")
    assert found["nextStep"].startswith("attempt 2 of 5 at ")
    assert "tired9@" not in json.out

    lines = [
        line.split() for line in recovered.out.splitlines() if " attempt " in line and line[:1].isdigit()
    ]
    assert [line[3:5] + line[6:7] for line in lines if line[3:4] == ["attempt"]] == [
        ["attempt", "1", "transient"],
        ["attempt", "2", "accepted"],
    ]
    assert "homing resolve" in doubt.out
    assert unknown.code == 3


def test_stats_count_by_status_attempt_and_hour(past: CliWithHistory) -> None:
    json, page = past.many(["stats", "--json"], ["stats"])
    stats = json.json
    counts = stats["queueCounts"]
    assert (counts["sent"], counts["failed"], counts["retrying"], counts["pending"]) == (4, 3, 1, 1)
    assert counts["in_doubt"] == 1
    assert sum(counts.values()) == len(past.ids)
    by_attempts = {row["attempts"]: row for row in stats["retryStatistics"]}
    assert by_attempts[1] == {"attempts": 1, "count": 3, "pendingCount": 1, "failedCount": 2}
    assert by_attempts[2] == {"attempts": 2, "count": 1, "pendingCount": 0, "failedCount": 1}
    assert [(row["attempts"], row["succeeded"], row["failed"]) for row in stats["successByAttempt"]] == [
        (1, 3, 2),
        (2, 1, 1),
    ]
    assert sum(hour["accepted"] for hour in stats["hourly"]) == len(past.ids)
    assert "Success by attempt" in page.out


def test_health_marks_exceeded_thresholds_and_its_exit_code_shows_whether_there_are_any(
    past: CliWithHistory,
) -> None:
    fine, json = past.many(["health"], ["health", "--json"])
    (past.folder / "strict.toml").write_text(
        SETTINGS + "[thresholds]\nretry_backlog = 0\nfailure_rate_of = 1\n"
    )
    strict, strict_json = past.many(
        ["health", "--config", "strict.toml"], ["health", "--json", "--config", "strict.toml"]
    )
    assert fine.code == 0
    assert "healthy: no threshold is exceeded" in fine.out
    metrics = json.json
    assert list(metrics)[:13] == [
        "totalRetrying",
        "avgAttempts",
        "maxAttempts",
        "oldestRetry",
        "pendingRetryCount",
        "permanentlyFailedCount",
        "totalNotifications",
        "sentCount",
        "failedCount",
        "recoveredByRetryCount",
        "successRate",
        "failureRate",
        "retryRecoveryRate",
    ]
    assert metrics["healthy"] is True
    assert (metrics["totalNotifications"], metrics["sentCount"], metrics["failedCount"]) == (10, 4, 3)
    assert (metrics["successRate"], metrics["failureRate"], metrics["retryRecoveryRate"]) == (
        40.0,
        30.0,
        25.0,
    )
    assert (strict.code, strict_json.code) == (1, 1)
    assert "✗ 1 waiting for a retry" in strict.out
    assert "✗ 42.9 % of 7 failed in this hour and the one before" in strict.out
    passed = [check["name"] for check in strict_json.json["thresholds"] if check["exceeded"]]
    assert passed == ["RetryBacklog", "FailureRate"]


_ON_A_FULL_DISK = """
import shutil
shutil.disk_usage = lambda path: shutil._ntuple_diskusage(1_000_000, 999_000, 1_000)
from homing.cli import main
main()
"""


def test_now_says_that_the_disk_is_full(past: CliWithHistory) -> None:
    assert "freeDiskBytes" in past("now", "--json").json
    command = [sys.executable, "-c", _ON_A_FULL_DISK, "now"]
    told = subprocess.run(command, cwd=past.folder, capture_output=True, text=True, timeout=60, check=False)
    assert told.returncode == 1
    assert told.stdout.startswith("✗ the disk of the store is full; free some space; on a full disk nothing")
