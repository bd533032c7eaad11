"""`homing db` and `homing doctor`: checks of everything that deliveries need."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from pathlib import Path
from typing import cast

import pytest

from support.cli_driver import SETTINGS, Cli
from support.mail_host import InstalledCli, mail_host
from support.redis_server import RedisServer


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


def test_the_schema_is_created_once_and_checked(cli: Cli) -> None:
    sqlite3.connect(cli.folder / "other.db").execute("CREATE TABLE t (a)").connection.close()
    missing, first, second, fine, json, other = cli.many(
        ["db", "check"],
        ["db", "migrate", "--json"],
        ["db", "migrate"],
        ["db", "check"],
        ["db", "check", "--json"],
        ["db", "check", "--store", "other.db"],
    )
    assert (missing.code, missing.out) == (4, "")
    assert missing.err == (
        f"error: the store homing.db does not exist in {cli.folder}; "
        "give its address with --store, or create it with `homing db migrate`\n"
    )
    version = first.json["schemaVersion"]
    assert len(first.json["applied"]) == version >= 1
    assert second.out == f"homing.db is already at schema version {version}\n"
    assert fine.out.startswith(f"homing.db is fine, at schema version {version}\n")
    assert json.json["ok"] is True
    assert json.json["notifications"] == 0
    assert other.code == 4
    assert "has no Homing schema yet. Run `homing db migrate`." in other.err


def test_a_newer_schema_is_left_alone(cli: Cli) -> None:
    cli.ok("db", "migrate")
    with sqlite3.connect(cli.folder / "homing.db") as connection:
        connection.execute("INSERT INTO homing_schema VALUES (99, '0099_future', 0)")
    connection.close()
    check, stats = cli.many(["db", "check"], ["stats"])
    assert check.code == stats.code == 4
    assert "Upgrade Homing here" in check.err


def test_a_pooler_is_reported_by_both_commands_and_nothing_fails(
    cli: Cli, pooled_url: str, postgres_url: str
) -> None:
    store = ["--store", pooled_url]
    _, check, json, doctor, fine = cli.many(
        ["db", "migrate", *store],
        ["db", "check", *store],
        ["db", "check", "--json", *store],
        ["doctor", *store],
        ["db", "check", "--store", f"{pooled_url}?listen_url={postgres_url}"],
    )
    assert (check.code, doctor.code, fine.code) == (0, 0, 0), (check, doctor, fine)
    for page in (check, doctor):
        assert "✗" not in page.out
        assert re.search("^✓ server +PostgreSQL [0-9]", page.out, re.MULTILINE)
        assert "found; 0 prepared statements are kept per connection" in page.out
        assert "  → give a direct URL of the same database as listen_url\n" in page.out
    assert [line for line in check.out.splitlines() if len(line) > 80] == []
    checks = {one["name"]: one for one in json.json["checks"]}
    assert (checks["listen"]["ok"], bool(checks["listen"]["advice"])) == (True, True)
    assert "✓ listen   messages about new work arrive" in fine.out


def test_the_doctor_reports_a_healthy_setup(cli: Cli) -> None:
    _, page, json = cli.many(["db", "migrate"], ["doctor"], ["doctor", "--json"])
    assert page.code == 0, page
    assert "✗" not in page.out
    assert json.json["ok"] is True
    names = [check["name"] for check in json.json["checks"]]
    for name in (
        "settings",
        "store",
        "writing",
        "clock",
        "breakers",
        "worker",
        "backlog",
        "leases",
        "disk",
        "provider",
    ):
        assert name in names, name


def test_the_doctor_reports_problems_and_what_to_do(cli: Cli) -> None:
    (cli.folder / "typo.toml").write_text("polcy = 1\n")
    (cli.folder / "homing.toml").write_text(
        SETTINGS + '[providers.gone]\nkind = "file"\npath = "no/such/folder/x.jsonl"\n'
    )
    missing, typo, _ = cli.many(
        ["doctor", "--json"],
        ["doctor", "--config", "typo.toml"],
        ["send", "--to", "a@b.cc", "--channel", "email", "--body", "x"],
    )
    found = {check["name"]: check for check in missing.json["checks"]}
    assert missing.code == 1
    assert f"the store homing.db does not exist in {cli.folder}; " in found["store"]["detail"]
    assert typo.code == 1
    assert typo.out.startswith("✗ settings")

    hours_ago = 3 * 3_600_000
    with sqlite3.connect(cli.folder / "homing.db") as connection:
        connection.execute("UPDATE homing_notifications SET due_at = due_at - ?", (hours_ago,))
    connection.close()
    sick = cli("doctor")
    assert sick.code == 1
    said = " ".join(sick.out.split())
    assert "✗ worker the oldest due notification is 3h overdue; no live worker → start" in said
    assert "✗ provider  gone (" in sick.out
    assert "the folder no/such/folder does not exist → check its settings" in said
    assert "✓ provider  pigeon" in sick.out


def test_a_breaker_that_waits_for_its_trial_is_no_problem(cli: Cli) -> None:
    """An idle provider stays half open, so a monitor would otherwise report it for ever."""
    (cli.folder / "homing.toml").write_text(
        'store = "homing.db"\n[providers.mail]\nkind = "file"\npath = "out/mail.jsonl"\n'
        '[providers.mail.breaker]\nfailures = 1\nopen_ms = "1ms"\n'
    )
    cli.ok("send", "--to", "ada@example.org", "--channel", "email", "--body", "x")
    cli.ok("process")
    (cli.folder / "out").mkdir()
    page = cli.ok("doctor").out
    assert (
        "! breakers  mail is half open → the next notification is the trial that closes or opens it" in page
    )
    cli.ok("providers", "open", "mail", "--why", "maintenance")
    stopped = cli("doctor")
    assert stopped.code == 1
    assert "✗ breakers  mail is held open by " in stopped.out


def test_the_doctor_checks_every_given_store(cli: Cli) -> None:
    (cli.folder / "junk.db").write_bytes(b"no database at all, however long this may be" * 100)
    junk, memory = cli.many(["doctor", "--store", "junk.db"], ["doctor", "--store", "memory:"])
    assert junk.code == 1
    assert "✗ store     junk.db is not an SQLite database" in junk.out
    assert memory.code == 0


async def test_the_doctor_sends_a_test_email_through_every_email_provider(tmp_path: Path) -> None:
    cli = InstalledCli(tmp_path)
    async with mail_host(tmp_path) as host:
        (tmp_path / "homing.toml").write_text(
            f'store = "homing.db"\n{host.settings("first")}{host.settings("second")}'
            '[providers.texts]\nkind = "file"\npath = "texts.jsonl"\nchannels = ["sms"]\n'
        )
        cli.ok("db", "migrate")
        checked = await asyncio.to_thread(cli, "doctor")
        assert (checked.code, host.kept.envelopes) == (0, [])
        sent = await asyncio.to_thread(cli, "doctor", "--send", "ada@example.org")
        (tmp_path / "homing.toml").write_text(
            f'store = "homing.db"\n{host.settings("first")}{host.settings("second", password="wrong")}'
        )
        broken = await asyncio.to_thread(cli, "doctor", "--send", "ada@example.org", "--json")
    assert sent.code == 0, sent
    for name in ("first", "second"):
        text = f"✓ sending a test message to a•••@example.org over email through {name}: accepted"
        assert text in " ".join(sent.out.split())
    assert sent.out.count("sending") == 2, "a provider of another channel gets nothing"
    assert "ada@example.org" not in sent.out
    assert [envelope.rcpt_tos for envelope in host.kept.envelopes] == [["ada@example.org"]] * 3
    assert b"This is a test message from Homing." in cast(bytes, host.kept.envelopes[0].content)

    assert (broken.code, broken.json["ok"]) == (1, False)
    good, bad = (check for check in broken.json["checks"] if check["name"] == "sending")
    assert good["ok"]
    assert not bad["ok"]
    assert "through second: provider_fault after " in bad["detail"]
    assert "(535 5.7.8: " in bad["detail"]
    recorded = cli.ok("audit", "list", "--shared", "--json").json["items"]
    tested = [entry["target"] for entry in recorded if entry["action"] == "provider.test"]
    assert sorted(tested) == ["first", "first", "second", "second"]


def test_the_doctor_sends_on_the_channel_of_the_address(cli: Cli) -> None:
    (cli.folder / "homing.toml").write_text(
        SETTINGS + '[providers.gone]\nkind = "file"\npath = "no/such/folder/x.jsonl"\nchannels = ["push"]\n'
    )
    cli.ok("db", "migrate")
    sms, webhook, push, nothing = cli.many(
        ["doctor", "--send", "+4930123456"],
        ["doctor", "--send", "https://example.org/hook"],
        ["doctor", "--send", "device-token-1", "--channel", "push"],
        ["doctor", "--send", "ada@example.org", "--store", "missing.db"],
    )
    said = [" ".join(page.out.split()) for page in (sms, webhook, push)]
    assert "✓ sending a test message to +4•••56 over sms through pigeon: accepted in " in said[0]
    assert "to https://example.org/••• over webhook through hawk: accepted in " in said[1]
    assert "through pigeon: accepted in " in said[2]
    assert "✗ sending a test message to devi••• over push through gone: " in said[2]
    assert push.code == 1
    assert "✗ sending   nothing was sent: the store" in nothing.out
    assert len((cli.folder / "hawk.jsonl").read_text().splitlines()) == 3


def test_to_send_the_doctor_needs_an_address_and_a_provider(cli: Cli) -> None:
    (cli.folder / "homing.toml").write_text(
        'store = "homing.db"\n[providers.pigeon]\nkind = "file"\npath = "p.jsonl"\nchannels = ["sms"]\n'
    )
    cli.ok("db", "migrate")
    cases = [
        (["--send", "device-token-1"], "--channel: is missing; it is optional only for an email address"),
        (["--send", "ada@"], "--send: "),
        (["--send", "ada@example.org", "--channel", "fax"], "--channel: is 'fax'"),
        (["--channel", "sms"], "--channel: works only with --send"),
    ]
    unserved, *refused = cli.many(
        ["doctor", "--send", "ada@example.org"], *[["doctor", *argv] for argv, _ in cases]
    )
    assert unserved.code == 1
    assert "✗ sending   nothing was sent: no provider serves email\n  → add one" in unserved.out
    for result, (_, says) in zip(refused, cases, strict=True):
        assert (result.code, result.out) == (2, ""), result
        assert says in result.err, result


def test_the_doctor_examines_redis_as_timer_and_sink(cli: Cli, redis_server: RedisServer) -> None:
    (cli.folder / "homing.toml").write_text(
        f'store = "homing.db"\n[timers]\nhigh = "redis"\n[timers.redis]\nurl = "{redis_server.url}"\n'
        f'[sinks.stream]\nkind = "redis"\nurl = "{redis_server.url}"\npassword = "env:OUR_SECRET"\n'
    )
    found = {one["name"]: one for one in cli("doctor", "--json", OUR_SECRET="hush-hush").json["checks"]}
    port = redis_server.port
    assert found["timer"]["detail"].startswith(f"redis: Redis at 127.0.0.1:{port}, version ")
    assert found["sink"]["detail"] == f"stream: Redis at 127.0.0.1:{port} rejects the user name or password"
    assert found["sink"]["advice"].startswith("correct username and password")
    redis_server.kill()
    gone, page = cli.many(["doctor", "--json"], ["doctor"], OUR_SECRET="hush-hush")
    assert "  → start Redis, or correct the host" in page.out
    lines = page.out[page.out.index("✓ sink ") :].splitlines()
    assert [line for line in lines if len(line) > 80] == []
    assert gone.code == 1
    timer = next(one for one in gone.json["checks"] if one["name"] == "timer")
    assert timer["detail"].startswith(f"redis: Redis at 127.0.0.1:{port} cannot be reached")
    assert timer["advice"].startswith("start Redis, or correct the host")
    assert "hush-hush" not in gone.out
