"""`homing send`: one request, its results, and refusals."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from support.cli_driver import SETTINGS, Cli

TO = ("--to", "ada@example.org", "--channel", "email")


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    (tmp_path / "homing.toml").write_text(SETTINGS)
    return Cli(tmp_path)


def test_a_request_is_stored_with_all_its_fields(cli: Cli) -> None:
    said = cli.ok("send", *TO, "--subject", "Hi", "--body", "Hello")
    status, id, _, queue = said.out.split()
    assert (status, queue) == ("queued", "homing-standard")
    assert cli.ok("status", id, "--json").json["status"] == "pending"

    full = cli.ok(
        *("send", "--email", "ada@example.org", "--device-token", "token-0123456789", "--recipient-id", "u1"),
        *("--channel", "email", "--channel", "push", "--locale", "de-AT", "--time-zone", "Europe/Vienna"),
        *("--type", "order_confirmed", "--category", "orders", "--priority", "high", "--origin", "shop"),
        *("--subject", "S", "--title", "T", "--body", "B", "--html", "<b>B</b>", "--data", '{"a": 1}'),
        *("--metadata", '{"entry_id": 7}', "--idempotency-key", "k1", "--dedup-key", "d1"),
        *("--in", "10m", "--expires-in", "2h", "--json"),
    ).json
    assert full["status"] == "queued"
    assert full["queueName"] == "homing-priority"
    assert len(full["notificationIds"]) == 2
    email, push = (r.json for r in cli.many(*[["status", id, "--json"] for id in full["notificationIds"]]))
    assert (email["channel"], push["channel"]) == ("email", "push")
    assert email["batchId"] == push["batchId"] == full["batchId"]
    assert (email["type"], email["category"], email["priority"], email["origin"]) == (
        "order_confirmed",
        "orders",
        "high",
        "shop",
    )
    assert email["content"] == {
        "subject": "S",
        "title": "T",
        "body": "B",
        "html": "<b>B</b>",
        "data": {"a": 1},
    }
    assert email["metadata"] == {"entry_id": 7}
    assert email["recipient"]["email"] == "a•••@example.org"
    assert email["recipient"]["locale"] == "de-AT"
    wait = datetime.fromisoformat(email["sendAt"]) - datetime.now(UTC)
    assert timedelta(minutes=9) < wait <= timedelta(minutes=10)


def test_a_repeated_key_sends_once_and_another_body_is_refused(cli: Cli) -> None:
    first, again, other = cli.many(
        ["send", *TO, "--body", "x", "--idempotency-key", "k"],
        ["send", *TO, "--body", "x", "--idempotency-key", "k", "--json"],
        ["send", *TO, "--body", "y", "--idempotency-key", "k"],
    )
    assert again.json["notificationIds"] == [first.out.split()[1]]
    assert again.json["duplicate"] is True
    assert other.code == 2
    assert "idempotencyKey: 'k' already belongs to a different request" in other.err


def test_a_synchronous_send_prints_the_result(cli: Cli) -> None:
    sent = cli.ok("send", *TO, "--body", "x", "--synchronous", "--json").json
    assert sent["status"] == "sent"
    assert (cli.folder / "pigeon.jsonl").read_text().count("\n") == 1

    (cli.folder / "away.toml").write_text('[providers.pigeon]\nkind = "file"\npath = "no/such/folder/x"\n')
    failed, otp = cli.many(
        ["--config", "away.toml", "send", *TO, "--body", "x", "--synchronous"],
        ["send", *TO, "--body", "x", "--type", "otp"],
    )
    assert failed.code == 1
    assert failed.err.startswith("error: Synchronous delivery failed")
    assert "NOT queued" in failed.err
    assert otp.out.startswith("sent "), "its type says that it is synchronous"


def test_an_invalid_request_is_refused_with_its_field_and_nothing_is_stored(cli: Cli) -> None:
    (cli.folder / "large.txt").write_text("x" * 1_048_576)
    (cli.folder / "nul.txt").write_bytes(b"a\x00b")
    (cli.folder / "bell.txt").write_bytes(b"a\x07b")
    (cli.folder / "latin1.txt").write_bytes(b"caf\xe9")
    cases = {
        "channel: is 'fax'; it must be one of sms": ["--to", "a@b.cc", "--channel", "fax", "--body", "x"],
        "channel: is missing": ["--email", "a@b.cc", "--body", "x"],
        "recipient: is missing": ["--channel", "email", "--body", "x"],
        "recipient.email: is empty": ["--to", "", "--channel", "email", "--body", "x"],
        "recipient.email: is not an email address": ["--to", "ada", "--channel", "email", "--body", "x"],
        "recipient.phone: is not a phone number": ["--to", "ada", "--channel", "sms", "--body", "x"],
        "recipient.email: has a line break or control": [
            "--to",
            "a\n@b.cc",
            "--channel",
            "email",
            "--body",
            "x",
        ],
        "content.subject: has a line break": [*TO, "--subject", "a\nBcc: x@y.zz", "--body", "x"],
        "content: is missing": [*TO],
        "content: has 1048576 bytes; at most": [*TO, "--body-file", "large.txt"],
        "content.body: has a control character": [*TO, "--body-file", "nul.txt"],
        "control character; only text": [*TO, "--body-file", "bell.txt"],
        "--body-file: latin1.txt is not UTF-8 text": [*TO, "--body-file", "latin1.txt"],
        "--body-file: gone.txt: No such file": [*TO, "--body-file", "gone.txt"],
        "priority: is 'urgent'; it must be one of critical": [*TO, "--body", "x", "--priority", "urgent"],
        "--in: is -5m; it cannot be negative": [*TO, "--body", "x", "--in", "-5m"],
        "--in: is 'soon'; give a duration": [*TO, "--body", "x", "--in", "soon"],
        "--send-at: has no time zone": [*TO, "--body", "x", "--send-at", "2030-01-01T10:00:00"],
        "--send-at: give either --send-at or --in, not both": [
            *TO,
            "--body",
            "x",
            "--in",
            "1m",
            "--send-at",
            "2030-01-01T00:00Z",
        ],
        "expiresAt: must be later than now": [*TO, "--body", "x", "--expires-at", "2020-01-01T00:00:00Z"],
        "--data: is not a JSON object": [*TO, "--body", "x", "--data", "{oops"],
        "--metadata: is not a JSON object": [*TO, "--body", "x", "--metadata", "[1]"],
        "provider: 'crow' does not serve email": [*TO, "--body", "x", "--provider", "crow"],
        "templateKey": [*TO, "--template-key", "welcome"],
        "synchronous: allows only one recipient": [*TO, "--to", "b@c.dd", "--body", "x", "--synchronous"],
        "--idempotency-column: works only with --csv": [*TO, "--body", "x", "--idempotency-column", "id"],
    }
    *results, listed = cli.many(*[["send", *argv] for argv in cases.values()], ["list", "--json"])
    for said, result in zip(cases, results, strict=True):
        assert result.code == 2, result
        assert result.err.splitlines()[-1].startswith("error: "), result
        assert said in result.err, result
        assert not result.out, result
    assert listed.json["items"] == []
