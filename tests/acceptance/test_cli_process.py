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
    assert (
        "Retry settings (simple/default) - Max attempts: 3, Base delay: 5 minutes (exponential backoff)"
        in told
    )
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
