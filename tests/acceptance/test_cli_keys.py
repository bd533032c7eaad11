"""`keys`, `tenants` and `audit` on the real command line, and the audit entries of changing commands."""

from __future__ import annotations

import getpass
import sqlite3
from pathlib import Path

import msgspec
import pytest

from support.cli_driver import SETTINGS, Cli, history

ME = f"cli:{getpass.getuser()}"


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    (tmp_path / "homing.toml").write_text(SETTINGS)
    return Cli(tmp_path)


def tamper(cli: Cli, statement: str, *values: object) -> None:
    """Changes the store's file directly, like an attacker with write access."""
    with sqlite3.connect(cli.folder / "homing.db") as store:
        assert store.execute(statement, values).rowcount > 0
    store.close()


def test_a_key_is_printed_alone_for_use_in_scripts(cli: Cli) -> None:
    made = cli.ok("keys", "create", "web shop", "--scope", "send", "--expires", "90d", "--rate", "50/s")
    text = made.out.strip()
    assert made.out == f"{text}\n"
    id = text.split("_")[1]
    assert text.startswith(f"hm_{id}_")
    assert f"key {id} of tenant default, scopes send; it is not shown again" in made.err
    table, listed = cli.many(["keys", "list"], ["keys", "list", "--json"])
    [key] = listed.json["items"]
    assert (key["id"], key["name"], key["scopes"], key["status"]) == (id, "web shop", ["send"], "active")
    assert (key["ratePerSecond"], key["createdBy"]) == (50.0, ME)
    assert "web shop" in table.out
    assert text.rpartition("_")[2] not in table.out + listed.out
    stored = b"".join(file.read_bytes() for file in cli.folder.glob("homing.db*"))
    assert id.encode() in stored
    assert text.rpartition("_")[2].encode() not in stored


def test_a_key_is_rotated_with_an_overlap_and_revoked(cli: Cli) -> None:
    old = cli.ok("keys", "create", "shop", "--json").json["key"]["id"]
    new, revoked, again, listed, missing = cli.many(
        ["keys", "rotate", old, "--overlap", "2h", "--json"],
        ["keys", "revoke", old],
        ["keys", "rotate", old],
        ["keys", "list", "--json"],
        ["keys", "revoke", "nothing"],
    )
    assert new.code == 0
    by_id = {key["id"]: key for key in listed.json["items"]}
    assert by_id[old]["replacedBy"] == new.json["key"]["id"]
    assert (by_id[old]["status"], by_id[old]["revokedBy"]) == ("revoked", ME)
    assert by_id[new.json["key"]["id"]]["status"] == "active"
    assert revoked.out == f"revoked {old} shop (default)\n"
    assert (again.code, "was already rotated to" in again.err) == (1, True)
    assert (missing.code, missing.err) == (3, "error: there is no key 'nothing'\n")


def test_tenants_are_created_disabled_and_enabled(cli: Cli) -> None:
    made, twice, bad, key, nobody, off, listed, on, mine, everyones = cli.many(
        ["tenants", "create", "acme"],
        ["tenants", "create", "acme"],
        ["tenants", "create", "Acme Inc"],
        ["keys", "create", "shop", "--tenant", "acme"],
        ["keys", "create", "shop", "--tenant", "nobody"],
        ["tenants", "disable", "acme"],
        ["tenants", "list", "--json"],
        ["tenants", "enable", "acme", "--json"],
        ["keys", "list", "--json"],
        ["keys", "list", "--json", "--all-tenants"],
    )
    assert (made.code, made.out) == (0, "acme enabled\n")
    assert (twice.code, "already" in twice.err) == (2, True)
    assert (bad.code, "name: must have" in bad.err) == (2, True)
    assert key.code == 0
    assert (nobody.code, nobody.err) == (3, "error: there is no tenant 'nobody'\n")
    assert off.out.startswith(f"acme disabled by {ME}")
    assert [(one["name"], one["enabled"]) for one in listed.json["items"]] == [
        ("acme", False),
        ("default", True),
    ]
    assert on.json["enabled"] is True
    assert mine.json["items"] == []
    assert [one["tenant"] for one in everyones.json["items"]] == ["acme"]


def test_invalid_flags_are_named_and_nothing_is_created(cli: Cli) -> None:
    *refused, listed = cli.many(
        ["keys", "create", "shop", "--scope", "root"],
        ["keys", "create", "shop", "--expires", "soon"],
        ["keys", "create", "shop", "--rate", "fast"],
        ["keys", "list", "--limit", "0"],
        ["audit", "verify", "--head", "short"],
        ["audit", "list", "--cursor", "made-up"],
        ["keys", "list", "--json"],
    )
    named = ("scopes", "--expires", "--rate", "--limit", "--head", "cursor")
    for one, field in zip(refused, named, strict=True):
        assert (one.code, field in one.err) == (2, True), one
    assert listed.json["items"] == []


def test_every_changing_command_is_in_the_audit_trail_with_who_and_what(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    ids = history(tmp_path)
    (tmp_path / "homing.toml").write_text(SETTINGS)
    done = cli.many(
        ["cancel", ids["pending"], "--who", "ada"],
        ["retry", ids["waiting"], "--why", "asked"],
        ["resolve", ids["doubt"], "sent"],
        ["dead", "ack", ids["bad1"]],
        ["dead", "resend", ids["bad2"], "--who", "bob"],
        ["dead", "ack", "--all", "--yes"],
        ["dead", "ack", "--all", "--dry-run"],
        ["policy", "set", "mine", "--type", "order", "--max-attempts", "9"],
        ["policy", "unset", "mine"],
        ["policy", "show"],
        ["providers", "open", "hawk", "--why", "down"],
        ["providers", "auto", "hawk"],
        ["purge", "--days", "30"],
        ["purge", "--dry-run"],
    )
    assert [one.code for one in done] == [0] * len(done)
    mine, shared, table = cli.many(
        ["audit", "list", "--json"], ["audit", "list", "--shared", "--json"], ["audit", "list"]
    )
    told = [(one["who"], one["action"], one["target"]) for one in reversed(mine.json["items"])]
    assert told == [
        ("cli:ada", "notification.cancel", ids["pending"]),
        (ME, "notification.retry", ids["waiting"]),
        (ME, "notification.resolve", ids["doubt"]),
        (ME, "dead_letter.acknowledge", ids["bad1"]),
        ("cli:bob", "dead_letter.resend", ids["bad2"]),
        (ME, "dead_letter.acknowledge", ""),
    ]
    assert mine.json["items"][0]["detail"]["count"] == 1
    assert mine.json["items"][4]["detail"] == {"why": "asked"}
    assert [(one["action"], one["target"]) for one in reversed(shared.json["items"])] == [
        ("policy.set", "mine"),
        ("policy.unset", "mine"),
        ("breaker.set", "hawk"),
        ("breaker.set", "hawk"),
        ("purge.run", ""),
    ]
    assert "notification.cancel" in table.out


def test_an_untouched_trail_is_valid_and_shows_the_hash_to_keep(cli: Cli) -> None:
    *_, plain = cli.many(*[["keys", "create", f"key {n}"] for n in range(3)], ["audit", "verify", "--json"])
    assert plain.json["sound"] is True
    [chain] = plain.json["chains"]
    assert (chain["tenant"], chain["entries"], chain["faults"]) == ("default", 3, [])
    _, kept, lost = cli.many(
        ["keys", "create", "one more"],
        ["audit", "verify", "--head", chain["head"]["hash"]],
        ["audit", "verify", "--head", "0" * 64],
    )
    assert (kept.code, "sound 4 entries" in kept.out) == (0, True)
    assert lost.code == 1
    assert "no entry has the hash" in lost.out


def test_tampering_with_the_store_s_file_is_detected(cli: Cli) -> None:
    *_, sound = cli.many(*[["keys", "create", f"key {n}"] for n in range(6)], ["audit", "verify", "--json"])
    head = sound.json["chains"][0]["head"]["hash"]
    where = "kind = 'audit' AND tenant = 'default' AND json_extract(value, '$.number') = ?"
    tamper(cli, f"UPDATE homing_registry SET value = json_set(value, '$.who', 'cli:eve') WHERE {where}", 2)
    tamper(cli, f"DELETE FROM homing_registry WHERE {where}", 4)
    found, told = cli.many(["audit", "verify", "--json"], ["audit", "verify"])
    assert (found.code, told.code, found.json["sound"]) == (1, 1, False)
    faults = [(one["kind"], one["number"]) for one in found.json["chains"][0]["faults"]]
    assert faults == [("removed", 4), ("changed", 2)]
    assert "removed entry 4 of default" in told.out
    assert "changed entry 2 of default" in told.out
    # A truncated chain with a moved head looks complete; only a hash kept elsewhere reveals it.
    fifth = msgspec.json.decode(_value(cli, 5))
    tamper(cli, f"DELETE FROM homing_registry WHERE {where}", 6)
    tamper(
        cli,
        "UPDATE homing_registry SET value = json_set(value, '$.number', 5, '$.hash', ?)"
        " WHERE kind = 'audit_head'",
        fifth["hash"],
    )
    assert head in cli("audit", "verify", "--head", head).out


def _value(cli: Cli, number: int) -> str:
    with sqlite3.connect(cli.folder / "homing.db") as store:
        found = store.execute(
            "SELECT value FROM homing_registry WHERE kind = 'audit' AND json_extract(value, '$.number') = ?",
            (number,),
        ).fetchone()
    store.close()
    return str(found[0])
