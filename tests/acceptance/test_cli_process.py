"""`homing process` and `homing worker`: deliveries, with the output of source 001."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from support.cli_driver import SETTINGS, Cli

AWAY = """
preset = "simple"
store = "homing.db"
[providers.pigeon]
kind = "file"
path = "folder/pigeon.jsonl"
"""
SLOW = """
store = "homing.db"
[providers.pigeon]
kind = "scripted"
latency_ms = {latency_ms}
"""


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    (tmp_path / "homing.toml").write_text(SETTINGS)
    return Cli(tmp_path)


def _send(cli: Cli, count: int = 1) -> list[str]:
    argv = [
        "send",
        "--channel",
        "email",
        "--type",
        "checkIn",
        "--subject",
        "Hi",
        "--body",
        "Hello",
        "--json",
        "--to",
    ]
    sent = cli.many(*[[*argv, f"parent{number}@example.com"] for number in range(count)])
    return [one.json["notificationIds"][0] for one in sent]


def test_the_retry_settings_of_a_preset_s_rules_include_rules_of_one_s_own(cli: Cli) -> None:
    (cli.folder / "homing.toml").write_text(
        AWAY + '[[rules]]\nname = "ours"\nbase_ms = "1m"\njitter = "none"\n'
    )
    told = [line[22:] for line in cli.ok("process", "--verbose").out.splitlines()]
    assert [line for line in told if line.startswith("Retry settings")] == [
        "Retry settings - Max attempts: 3, Base delay: 1 minute (exponential backoff)",
        "Retry settings (simple/default) - Max attempts: 3, Base delay: 1 minute (exponential backoff)",
        "Retry settings (simple/incident) - Max attempts: 5, Base delay: 1 minute (exponential backoff)",
        "Retry settings (simple/checkIn) - Max attempts: 3, Base delay: 1 minute (exponential backoff)",
        "Retry settings (simple/photo) - Max attempts: 2, Base delay: 1 minute (exponential backoff)",
    ]


def test_process_prints_each_step_with_its_time_and_masked_recipients(cli: Cli) -> None:
    (cli.folder / "homing.toml").write_text(AWAY)
    (id,) = _send(cli)
    failing = cli.ok("process", "--verbose").out.splitlines()
    (cli.folder / "folder").mkdir()
    cli.ok("retry", id)
    working = cli.ok("process", "--verbose", "--limit", "5").out.splitlines()

    for line in failing + working:
        assert re.match(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] ", line), line
    told = [line[22:] for line in failing]
    assert told[:3] == [
        "Notification Queue Processor started",
        "Limit: 50, Dry Run: No",
        "Queue status - Pending: 1, Processing: 0, Failed: 0",
    ]
    assert "Retry settings - Max attempts: 3, Base delay: 5 minutes (exponential backoff)" in told
    start = told.index("Found 1 pending notification(s) to process")
    assert told[start + 1 : start + 4] == [
        f"Processing notification #{id} (checkIn, channel: email)",
        "  Sending email to p•••@example.com via pigeon",
        "  Email failed (transient): No such file or directory",
    ]
    assert re.fullmatch(
        rf"  Notification #{id} will be retried in (5m|4m 59s) at \d{{4}}-.* via pigeon", told[start + 4]
    )
    assert told[start + 5 :] == ["Processed: 1, Succeeded: 0, Retried: 1, Failed: 0"]

    told = [line[22:] for line in working]
    assert told[1] == "Limit: 5, Dry Run: No"
    assert "Average attempts: 1.0" in told
    start = told.index("Found 1 pending notification(s) to process")
    assert told[start + 2] == "  Sending email to p•••@example.com via pigeon"
    assert re.fullmatch(r"  Email sent successfully in \d+ms", told[start + 3])
    assert told[start + 4 :] == [
        f"  Notification #{id} marked as sent",
        "Processed: 1, Succeeded: 1, Retried: 0, Failed: 0",
    ]


def test_a_dry_run_prints_what_would_be_done_and_does_nothing(cli: Cli) -> None:
    ids = _send(cli, 3)
    dry, verbose, json, two, json_run, human, bad = cli.many(
        ["process", "--dry-run"],
        ["process", "--dry-run", "--verbose"],
        ["process", "--dry-run", "--json"],
        ["process", "--limit", "2", "--json"],
        ["process", "--json"],
        ["process"],
        ["process", "--limit", "0"],
    )
    assert dry.out.startswith("3 notifications would be processed\n")
    assert all(id in dry.out for id in ids)
    assert f"Would process notification #{ids[0]} (checkIn, channel: email)" in verbose.out
    assert json.json == {
        "processed": 0,
        "succeeded": 0,
        "retried": 0,
        "failed": 0,
        "other": 0,
        "dryRun": True,
        "found": 3,
    }
    assert two.json == {"processed": 2, "succeeded": 2, "retried": 0, "failed": 0, "other": 0}
    assert json_run.json["processed"] == 1
    assert human.out == "processed 0: 0 succeeded, 0 to be retried, 0 failed\n"
    assert bad.code == 2
    assert (cli.folder / "pigeon.jsonl").read_text().count("\n") == 3


def _send_of(cli: Cli, *tenants: str) -> list[str]:
    argv = ["send", "--channel", "email", "--type", "checkIn", "--subject", "Hi", "--body", "Hello", "--json"]
    sent = cli.many(*[[*argv, "--to", f"{tenant}@example.com", "--tenant", tenant] for tenant in tenants])
    return [one.json["notificationIds"][0] for one in sent]


def test_a_run_works_for_all_tenants_unless_one_is_named(cli: Cli) -> None:
    acme, other, third = _send_of(cli, "acme", "other", "acme")
    dry, one, verbose, counts = cli.many(
        ["process", "--dry-run"],
        ["process", "--tenant", "other", "--json"],
        ["process", "--verbose"],
        ["stats", "--json", "--tenant", "acme"],
    )
    assert dry.out.startswith("3 notifications would be processed\n")
    assert dry.out.splitlines()[1].endswith("TENANT")
    assert all(id in dry.out for id in (acme, other, third))
    assert one.json["processed"] == 1
    assert verbose.code == 0
    assert "Queue status - Pending: 2, Processing: 0, Failed: 0" in verbose.out
    assert "Found 2 pending notification(s) to process" in verbose.out
    assert f"Notification #{acme} marked as sent" in verbose.out
    assert verbose.out.splitlines()[-1].endswith("Processed: 2, Succeeded: 2, Retried: 0, Failed: 0")
    assert counts.json["queueCounts"]["sent"] == 2


def test_chosen_notifications_are_processed_even_if_they_are_not_due(cli: Cli) -> None:
    (cli.folder / "homing.toml").write_text(AWAY)
    first, second, third = _send(cli, 3)
    cli.ok("process")
    (cli.folder / "folder").mkdir()
    dry, done, waiting, unknown, again, history = cli.many(
        ["process", "--id", second, "--id", first, "--dry-run"],
        ["process", "--id", second, "--id", first, "--json"],
        ["waiting", "--json"],
        ["process", "--id", "no-such-id"],
        ["process", "--id", first, "--json"],
        ["explain", first],
    )
    again_dry, again_text = cli.many(
        ["process", "--id", first, "--id", third, "--dry-run"], ["process", "--id", first]
    )
    assert dry.out.startswith("2 notifications would be processed\n")
    assert (done.json["processed"], done.json["succeeded"]) == (2, 2)
    assert [one["id"] for one in waiting.json] == [third]
    assert (unknown.code, unknown.err) == (
        3,
        "error: there is no notification no-such-id for tenant 'default'\n",
    )
    assert again.json["processed"] == 0, "it was sent already"
    assert again.json["leftOut"] == {first: "sent"}
    left_out = f"{first} is sent; left out\n"
    assert again_dry.out.startswith(f"1 notification would be processed\n{left_out}")
    assert again_text.out == f"processed 0: 0 succeeded, 0 to be retried, 0 failed\n{left_out}"
    assert "command reschedule" in history.out
    assert "by process: chosen for this run" in history.out


def test_the_start_of_an_attempt_is_printed_before_it_ends(cli: Cli) -> None:
    (cli.folder / "homing.toml").write_text(SLOW.format(latency_ms=5_000))
    (id,) = _send(cli)
    run = cli.start("process", "--verbose")
    assert run.stdout is not None
    lines = list[str]()
    while not lines or "Sending" not in lines[-1]:
        lines.append(run.stdout.readline().rstrip())
    assert lines[-2].endswith(f"Processing notification #{id} (checkIn, channel: email)")
    assert lines[-1].endswith("  Sending email to p•••@example.com via pigeon")
    assert cli.ok("status", id, "--json").json["status"] == "sending"
    rest, err = run.communicate(timeout=120)
    told, *last = [line[22:] for line in rest.splitlines()]
    assert re.fullmatch(r"  Email sent successfully in \d+(\.\d)?s", told), err
    assert last == [
        f"  Notification #{id} marked as sent",
        "Processed: 1, Succeeded: 1, Retried: 0, Failed: 0",
    ]


def test_a_run_tells_what_an_open_breaker_holds_back(cli: Cli) -> None:
    (cli.folder / "homing.toml").write_text(AWAY)
    ids = _send(cli, 5)
    cli.ok("process")  # five failures open the breaker
    assert re.search(
        r"✗ breakers +pigeon is open until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\s+→ ", cli("doctor").out
    )
    retried, explained, run, json, verbose = cli.many(
        ["retry", ids[0]],
        ["explain", ids[0]],
        ["process"],
        ["process", "--json"],
        ["process", "--verbose"],
    )
    chosen, dry, dry_json = cli.many(
        ["process", "--id", ids[4]],  # others have been due for longer
        ["process", "--dry-run"],
        ["process", "--dry-run", "--json", "--id", ids[0], "--id", ids[3]],
    )
    assert re.search(r"is due now at pigeon; held by the breaker of pigeon until \S+\n", retried.out)
    assert re.search(r"next +attempt 2 of 3 at .*; held by the breaker of pigeon until \S+\n", explained.out)
    until = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    assert re.fullmatch(
        "processed 0: 0 succeeded, 0 to be retried, 0 failed\n"
        rf"1 due notification held by the breaker of pigeon until {until}\n",
        run.out,
    )
    (held,) = json.json["held"]
    assert (held["provider"], held["notifications"]) == ("pigeon", 1)
    assert re.search(rf"\] 1 due notification held by the breaker of pigeon until {until}\n$", verbose.out)
    assert re.search(r"\n1 due notification held by the breaker of pigeon until ", chosen.out)
    assert dry.out.startswith("0 notifications would be processed\n2 due notifications held by the breaker")
    assert (dry_json.json["found"], dry_json.json["held"][0]["notifications"]) == (2, 2)
    (cli.folder / "folder").mkdir()
    # The run finds by a health check that the outage is over, and need not wait for the breaker.
    assert cli.ok("process", "--json").json["succeeded"] == 2, "the trial, and then the other one that is due"


@pytest.mark.source("003", "391-392")
def test_a_run_can_purge_and_a_stored_batch_size_limits_it(cli: Cli) -> None:
    _send(cli, 5)
    listed, stored, one, several, purged, reset, default, bad, no_purge, negative = cli.many(
        ["settings", "list", "--json"],
        ["settings", "set", "batch_size", "2", "--who", "ada", "--why", "slow provider"],
        ["process", "--verbose"],
        ["process", "--json"],
        ["process", "--purge", "--purge-days=0", "--json"],
        ["settings", "reset", "batch_size", "--why", "fast again", "--json"],
        ["process", "--dry-run", "--verbose"],
        ["settings", "set", "batch_size", "0"],
        ["process", "--purge-days", "3"],
        ["process", "--purge", "--purge-days", "-3"],
    )
    (before,) = listed.json["items"]
    assert (before["name"], before["value"], before["default"]) == ("batch_size", 50, 50)
    assert stored.out == "batch_size = 2, changed by ada (default: 50)\n"
    assert "Limit: 2, Dry Run: No" in one.out
    assert several.json["processed"] == 2
    assert purged.json["processed"] == 1
    assert purged.json["purged"]["notifications"] == 5
    assert reset.json["value"] == 50
    assert "Limit: 50, Dry Run: Yes" in default.out
    assert bad.err == "error: batch_size: is 0; it must be a whole number from 1 to 10000\n"
    assert no_purge.err == "error: --purge-days: needs --purge\n"
    assert negative.code == 2
    trail = cli.ok("audit", "list", "--tenant", "*", "--json").json["items"]
    assert [(entry["action"], entry["detail"].get("why")) for entry in trail] == [
        ("setting.reset", "fast again"),
        ("purge.run", None),
        ("setting.set", "slow provider"),
    ]


def test_a_run_for_some_notifications_purges_nothing(cli: Cli) -> None:
    acme, _ = _send_of(cli, "acme", "other")
    cli.ok("process")
    for_tenant, for_id, *bad, left = cli.many(
        ["process", "--tenant", "acme", "--purge", "--purge-days", "0"],
        ["process", "--tenant", "acme", "--id", acme, "--purge"],
        ["process", "--purge", "--purge-days", "nan"],
        ["process", "--purge", "--purge-days", "1e400"],
        ["purge", "--days", "nan"],
        ["purge", "--days", "inf"],
        ["purge", "--days", "40000"],
        ["stats", "--json", "--tenant", "other"],
    )
    why = "it deletes for all tenants; leave out --tenant and --id, or run `homing purge`"
    assert (for_tenant.code, for_tenant.err) == (2, f"error: --purge: {why}\n")
    assert (for_id.code, for_id.err) == (2, f"error: --purge: {why}\n")
    assert [(one.code, one.err) for one in bad] == [
        (2, "error: --purge-days: is nan; it must be a number of days\n"),
        (2, "error: --purge-days: is inf; at most 100 years are allowed\n"),
        (2, "error: --days: is nan; it must be a number of days\n"),
        (2, "error: --days: is inf; at most 100 years are allowed\n"),
        (2, "error: --days: is 40000; at most 100 years are allowed\n"),
    ]
    assert left.json["queueCounts"]["sent"] == 1


def test_with_json_stdout_contains_nothing_else_even_with_the_console_provider(cli: Cli) -> None:
    (cli.folder / "homing.toml").write_text("")
    _send(cli)
    done = cli.ok("process", "--json", "--verbose")
    assert done.json["succeeded"] == 1
    assert "[email] to parent0@example.com" in done.err
    assert "Notification Queue Processor started" in done.err


def test_a_worker_delivers_until_it_is_stopped(cli: Cli) -> None:
    (cli.folder / "homing.toml").write_text(SLOW.format(latency_ms=8_000))
    _send(cli, 3)  # a third slot is reserved for other tenants
    worker = cli.start("worker", "--interval", "200ms", "--batch-size", "3")
    assert worker.stdout is not None
    started = worker.stdout.readline()
    assert re.match(
        r"worker \S+ started: polls every 200ms, slots per channel: priority 3, standard 3", started
    )
    _until(cli, "sending", 2)
    worker.send_signal(signal.SIGTERM)
    out, err = worker.communicate(timeout=120)
    assert worker.returncode == 0, err
    assert "SIGTERM: stopping, with 2 attempts in flight" in err
    assert re.search(r"stopped after .*: processed 2: 2 succeeded, 0 to be retried, 0 failed", out)
    counts = cli.ok("stats", "--json").json["queueCounts"]
    assert (counts["sent"], counts["pending"], counts["sending"]) == (2, 1, 0)


def test_a_second_signal_aborts_attempts_in_flight(cli: Cli) -> None:
    (cli.folder / "homing.toml").write_text(SLOW.format(latency_ms=25_000))
    _send(cli, 2)
    worker = cli.start("worker")
    assert worker.stdout is not None
    assert worker.stderr is not None
    worker.stdout.readline()
    _until(cli, "sending", 2)
    worker.send_signal(signal.SIGINT)
    assert "SIGINT: stopping, with 2 attempts in flight" in worker.stderr.readline()
    worker.send_signal(signal.SIGTERM)
    out, err = worker.communicate(timeout=120)
    assert worker.returncode == 1
    assert "SIGTERM: 2 attempts aborted; other workers retry them" in err
    assert "stopped hard after" in out
    assert cli.ok("stats", "--json").json["queueCounts"]["sending"] == 2, "nothing was lost"


def test_a_worker_refuses_invalid_settings(cli: Cli) -> None:
    none, at_once, negative, word = cli.many(
        ["worker", "--batch-size", "0"],
        ["worker", "--interval", "0"],
        ["worker", "--interval", "-1s"],
        ["worker", "--interval", "often"],
    )
    why = "with 0, notifications would never be sent"
    assert (none.code, none.err) == (2, f"error: --batch-size: is 0; it must be at least 1; {why}\n")
    assert (at_once.code, at_once.err) == (2, "error: --interval: is 0 ms; it must be at least 1 ms\n")
    assert (negative.code, negative.err) == (2, "error: --interval: is -1s; it cannot be negative\n")
    assert word.code == 2


def _until(cli: Cli, status: str, count: int) -> None:
    """Polls the store until this many notifications have this status."""
    import asyncio

    from homing import Homing

    async def look() -> None:
        async with Homing(cli.folder / "homing.db", config_file=cli.folder / "homing.toml") as homing:
            for _ in range(2_400):
                if (await homing.queue_counts())[status] == count:
                    return
                await asyncio.sleep(0.05)
            raise AssertionError(f"there are never {count} {status}: {await homing.queue_counts()}")

    asyncio.run(look())
