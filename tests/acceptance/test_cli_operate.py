"""`dead`, `retry`, `cancel`, `resolve`, `purge`: what operators can do, and what is refused."""

from __future__ import annotations

import asyncio
import getpass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from homing import Homing
from support.cli_driver import SETTINGS, Cli, Ids, history


class CliWithHistory(Cli):
    """A folder whose store has a notification of every status, and providers that work again."""

    ids: Ids


@pytest.fixture
def past(tmp_path: Path) -> CliWithHistory:
    past = CliWithHistory(tmp_path)
    past.ids = history(tmp_path)
    (tmp_path / "homing.toml").write_text(SETTINGS)
    return past


def test_dead_letters_are_listed_unacknowledged_first_and_grouped_by_error(past: CliWithHistory) -> None:
    ack, *_ = past.many(["dead", "ack", past.ids["exhausted"], "--why", "known"])
    assert ack.out == "1 dead letter acknowledged\n"
    table, listed, page, unseen, seen, reason, groups, groups_json, bad = past.many(
        ["dead", "list"],
        ["dead", "list", "--json"],
        ["dead", "list", "--json", "--limit", "2"],
        ["dead", "list", "--json", "--unacknowledged"],
        ["dead", "list", "--json", "--acknowledged"],
        ["dead", "list", "--json", "--reason", "RETRIES_EXHAUSTED"],
        ["dead", "groups"],
        ["dead", "groups", "--json"],
        ["dead", "list", "--cursor", "made-up"],
    )
    exhausted, bad1, bad2 = (past.ids[name] for name in ("exhausted", "bad1", "bad2"))
    newest_first = sorted((bad1, bad2), reverse=True)  # they may have the same millisecond
    assert [item["id"] for item in listed.json["items"]] == [*newest_first, exhausted]
    assert [item["id"] for item in page.json["items"]] == newest_first
    rest = past.ok("dead", "list", "--json", "--cursor", page.json["cursor"])
    assert [item["id"] for item in rest.json["items"]] == [exhausted]
    assert {item["id"] for item in unseen.json["items"]} == {bad1, bad2}
    assert [item["id"] for item in seen.json["items"]] == [exhausted]
    assert seen.json["items"][0]["acknowledgedBy"] == getpass.getuser()
    assert seen.json["items"][0]["acknowledgedWhy"] == "known"
    assert [item["id"] for item in reason.json["items"]] == [exhausted]
    assert table.out.splitlines()[3].split()[8] == getpass.getuser()
    assert "nobody1@" not in table.out + listed.out + groups.out + groups_json.out
    assert sum(group["count"] for group in groups_json.json) == 3
    assert groups_json.json[0]["reason"] == "BAD_RECIPIENT"
    assert "BAD_RECIPIENT" in groups.out
    assert (bad.code, bad.err) == (
        2,
        "error: cursor: is not a cursor of this list; use one that the list returned\n",
    )


def test_a_bulk_resend_asks_first_and_sends_once(past: CliWithHistory) -> None:
    chosen = ("dead", "resend", "--reason", "BAD_RECIPIENT")
    dry, paced, paced_json, unasked, none, both, rate, nobody = past.many(
        [*chosen, "--dry-run"],
        [*chosen, "--dry-run", "--rate", "6/m"],
        [*chosen, "--dry-run", "--rate", "6/m", "--json"],
        [*chosen],
        ["dead", "resend"],
        ["dead", "resend", past.ids["bad1"], "--all"],
        [*chosen, "--rate", "0/s", "--yes"],
        ["dead", "resend", "nonsense"],
    )
    assert dry.out == "2 dead letters would be resent\n"
    assert paced.out == "2 dead letters would be resent, in about 20s at 0.1/s\n"
    assert (paced_json.json["done"], paced_json.json["takesMs"]) == (2, 20_000)
    assert unasked.code == 2
    assert "--yes: cannot ask for confirmation" in unasked.err
    assert none.code == both.code == rate.code == 2
    assert "ids: is empty" in none.err
    assert "ids: give either ids or filter flags" in both.err
    assert "--rate: is 0/s; a rate must be above 0" in rate.err
    assert nobody.code == 3

    done, again = past.many(
        [*chosen, "--yes", "--rate", "100/s", "--who", "eva", "--why", "mended", "--json"],
        [*chosen, "--yes"],
    )
    assert done.json == {"done": 2, "refused": 0, "stopped": None, "dryRun": False}
    assert again.out == "0 dead letters resent\n", "what was resent lives on in its successor"
    original = past.ok("status", past.ids["bad1"], "--json").json
    assert (original["acknowledgedBy"], original["acknowledgedWhy"]) == ("eva", "mended")
    past.ok("process")
    successor = past.ok("status", original["resentAs"], "--json").json
    assert (successor["status"], successor["resendOf"]) == ("sent", past.ids["bad1"])
    assert successor["metadata"] == {"n": 1}


def test_dead_letters_are_acknowledged_and_resent_by_id(past: CliWithHistory) -> None:
    bad1, bad2, sent = (past.ids[name] for name in ("bad1", "bad2", "sent0"))
    dry, partly, twice, everything = past.many(
        ["dead", "resend", bad1, "--dry-run"],
        ["dead", "resend", bad1, sent],
        ["dead", "resend", bad1],
        ["dead", "ack", "--all", "--yes", "--json"],
    )
    assert dry.out == "1 dead letter would be resent\n"
    assert partly.code == 5
    assert partly.out.startswith(f"1 dead letter resent\n  {bad1} → ")
    assert f"resend is not possible: {sent} is sent" in partly.err
    assert twice.code == 1
    assert everything.json["done"] == 2, "the resent one is acknowledged already"
    assert past.ok("dead", "list", "--json", "--unacknowledged").json["items"] == []
    assert past.ok("status", bad2, "--json").json["acknowledgedBy"] == getpass.getuser()


def test_a_notification_is_retried_cancelled_or_resolved(past: CliWithHistory) -> None:
    bad1, waiting, pending, doubt, sent = (
        past.ids[name] for name in ("bad1", "waiting", "pending", "doubt", "sent0")
    )
    retried, forced, crow, cancelled, late, resolved, again, wrong, misspelt, unknown = past.many(
        ["retry", bad1, "--why", "mended"],
        ["retry", waiting, "--provider", "hawk", "--json"],
        ["retry", waiting, "--provider", "crow"],
        ["cancel", pending, "--why", "no longer"],
        ["cancel", sent],
        ["resolve", doubt, "sent", "--who", "eva"],
        ["resolve", doubt, "failed"],
        ["resolve", doubt, "delivered"],
        ["resolve", doubt, "snet"],
        ["cancel", "nonsense"],
    )
    assert retried.out.startswith(f"retrying {bad1} is due now at pigeon")
    assert (forced.json["provider"], forced.json["pinned"]) == ("hawk", True)
    assert crow.code == 2
    assert "'crow' does not serve email; providers that do: pigeon, hawk" in crow.err
    assert cancelled.out == f"cancelled {pending}\n"
    assert late.code == 1
    assert f"cancel is not possible: {sent} is sent" in late.err
    assert resolved.out == f"sent {doubt}\n"
    assert again.code == 1
    assert wrong.code == 2
    assert misspelt.err == "error: status: is 'snet'; it must be sent or failed\n"
    assert wrong.err == "error: status: is 'delivered'; it must be sent or failed\n"
    assert unknown.code == 3

    past.ok("process")
    statuses = past.many(*[["status", id, "--json"] for id in (bad1, waiting, pending, doubt)])
    assert [one.json["status"] for one in statuses] == ["sent", "sent", "cancelled", "sent"]
    assert (past.folder / "hawk.jsonl").read_text().count("\n") == 1
    told = past.ok("explain", doubt).out
    assert "command resolve" in told
    assert "by eva" in told


def test_waiting_and_doubtful_notifications_are_moved_to_the_dead_letters(past: CliWithHistory) -> None:
    waiting, doubt, sent = (past.ids[name] for name in ("waiting", "doubt", "sent0"))
    moved, json, late, unknown = past.many(
        ["dead", "move", waiting, "--why", "the address is wrong", "--who", "eva"],
        ["dead", "move", doubt, "--json"],
        ["dead", "move", sent],
        ["dead", "move", "nonsense"],
    )
    assert moved.out == f"failed {waiting}\n"
    assert json.json == {"notificationId": doubt, "status": "failed"}
    assert (late.code, unknown.code) == (1, 3)
    assert f"move is not possible: {sent} is sent" in late.err
    listed = past.ok("dead", "list", "--json").json["items"]
    assert {waiting, doubt} <= {one["id"] for one in listed}
    assert "by eva" in past.ok("explain", waiting).out


def test_purge_removes_finished_notifications_and_statistics_still_count_them(past: CliWithHistory) -> None:
    dry, young, gone, negative, after, stats = past.many(
        ["purge", "--days", "0", "--dry-run", "--json"],
        ["purge", "--days", "1", "--json"],
        ["purge", "--days", "0"],
        ["purge", "--days", "-1"],
        ["list", "--json"],
        ["stats", "--json"],
    )
    assert dry.json == {"notifications": 7, "dryRun": True}
    assert young.json == {"notifications": 0, "keys": 0, "receipts": 0, "events": 0, "dryRun": False}
    assert gone.out == "removed 7 notifications, 0 keys, 0 receipts, 0 events\n"
    assert negative.code == 2
    assert "--days: is -1; it cannot be negative" in negative.err
    left = {item["id"] for item in after.json["items"]}
    assert left == {past.ids[name] for name in ("waiting", "pending", "doubt")}
    assert sum(row["succeeded"] for row in stats.json["successByAttempt"]) == 4


def test_a_waiting_notification_is_rescheduled(past: CliWithHistory) -> None:
    waiting, sent = past.ids["waiting"], past.ids["sent0"]
    later, shown, refused, wrong = past.many(
        ["reschedule", waiting, "2h", "--who", "eva", "--why", "maintenance"],
        ["status", waiting, "--json"],
        ["reschedule", sent, "2h"],
        ["reschedule", waiting, "soon"],
    )
    assert later.out.startswith(f"retrying {waiting} is due at ")
    due = datetime.fromisoformat(shown.json["nextRetryAt"]) - datetime.now(UTC)
    assert timedelta(hours=1, minutes=50) < due <= timedelta(hours=2)
    assert refused.code == 1
    assert f"reschedule is not possible: {sent} is sent" in refused.err
    assert (wrong.code, "DELAY: is 'soon'" in wrong.err) == (2, True)
    audit = past.ok("audit", "list", "--json").json["items"]
    assert ("notification.reschedule", "cli:eva") in {(one["action"], one["who"]) for one in audit}


def test_jobs_are_listed_stopped_and_resumed(past: CliWithHistory) -> None:
    (unknown,) = past.many(["jobs", "stop", "nonsense"])
    assert unknown.code == 3
    past.ok("dead", "ack", "--all", "--yes", "--who", "eva")
    table, listed = past.many(["jobs", "list"], ["jobs", "list", "--json"])
    (job,) = listed.json["items"]
    assert (job["command"], job["status"], job["who"]) == ("acknowledge", "done", "eva")
    assert job["expected"] == job["done"] > 0
    assert f"{job['done']} of {job['expected']}" in table.out
    assert max(map(len, table.out.splitlines())) <= 110
    stopped, resumed = past.many(["jobs", "stop", job["id"]], ["jobs", "resume", job["id"]])
    assert stopped.out.startswith(f"done {job['id']}")
    assert resumed.code == 1
    assert f"resume is not possible: job {job['id']} is done" in resumed.err


def test_a_stopped_job_is_resumed_until_it_ends(past: CliWithHistory) -> None:
    async def start_and_stop() -> str:
        async with Homing(store=str(past.folder / "homing.db")) as homing:
            failed = {"statuses": ["failed"]}
            job = await homing.jobs.start(homing.tenant, "acknowledge", failed, who="eva", rate_per_second=1)
            await homing.jobs.stop(homing.tenant, job.id, who="eva")
            while (await homing.jobs.get(homing.tenant, job.id)).status.value == "running":  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            return job.id

    id = asyncio.run(start_and_stop())
    before = past.ok("jobs", "list", "--json").json["items"][0]
    assert (before["id"], before["status"], before["stopped"]) == (id, "stopped", "stopped by eva")
    resumed = past.ok("jobs", "resume", id, "--who", "ada")
    assert resumed.out.startswith(f"done {id} ")
    assert past.ok("dead", "list", "--json", "--unacknowledged").json["items"] == []


def test_a_command_on_what_does_not_exist_leaves_no_entry_in_the_audit_trail(tmp_path: Path) -> None:
    _, *refused, own, shared = Cli(tmp_path).many(
        ["db", "migrate"],
        *[[command, "none"] for command in ("retry", "cancel")],
        ["reschedule", "none", "2h"],
        ["resolve", "none", "sent"],
        ["dead", "move", "none"],
        ["dead", "ack", "none"],
        ["dead", "resend", "none"],
        ["tenants", "disable", "none"],
        ["audit", "list", "--json"],
        ["audit", "list", "--shared", "--json"],
    )
    assert [one.code for one in refused] == [3] * 8
    assert own.json["items"] == shared.json["items"] == []
