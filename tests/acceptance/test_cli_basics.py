"""The command line as a whole: help, settings, errors and exit codes."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import pytest

from homing.settings import default_settings_text
from support.cli_driver import Cli


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


@pytest.mark.parametrize("argv", [("list", "--json"), ("send",)], ids=" ".join)
def test_a_command_does_the_same_in_a_new_process_as_in_a_fork_with_all_imports(
    cli: Cli, argv: tuple[str, ...]
) -> None:
    """Most tests use forks, see `support.preloaded_cli`."""
    forked = cli(*argv)
    started = subprocess.run(
        cli.command(*argv),
        cwd=cli.folder,
        env=cli.env(),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert (started.returncode, started.stdout) == (forked.code, forked.out)
    assert started.stderr in forked.err


def test_help_names_every_command_and_what_the_exit_codes_mean(cli: Cli) -> None:
    top, policy, dead, db, bare, version = cli.many(
        ["--help"], ["policy", "--help"], ["dead", "--help"], ["db", "-h"], [], ["--version"]
    )
    names = (
        "init demo send process worker status list waiting retry-info explain stats health dead retry "
        "cancel resolve purge policy db doctor"
    )
    for name in names.split():
        assert f"\n  {name} " in top.out, name
    assert "Exit codes:" in top.out
    for name in ("show", "set", "unset", "table", "simulate", "history"):
        assert f"\n  {name} " in policy.out, name
    for name in ("list", "groups", "ack", "resend"):
        assert f"\n  {name} " in dead.out, name
    assert "\n  migrate " in db.out
    assert "\n  check " in db.out
    assert (bare.code, bare.out) == (0, top.out)
    assert version.out.startswith("homing 0.")


def test_init_writes_the_documented_defaults_and_does_not_overwrite_them(cli: Cli) -> None:
    (cli.folder / "mine.toml").write_text("# mine")
    (cli.folder / "old.toml").write_text("# old")
    first, mine, forced = cli.many(["init"], ["init", "mine.toml"], ["init", "old.toml", "--force"])
    assert "Wrote homing.toml" in first.out
    written = (cli.folder / "homing.toml").read_text()
    assert written == default_settings_text()
    assert tomllib.loads(written)["store"] == "homing.db"
    assert mine.code == 2
    assert mine.err == "error: mine.toml: already exists; overwrite it with --force\n"
    assert (cli.folder / "mine.toml").read_text() == "# mine"
    assert forced.code == 0
    assert (cli.folder / "old.toml").read_text() == written


def test_a_wrong_command_line_gives_one_line_of_explanation_and_exit_code_2(cli: Cli) -> None:
    _, *results = cli.many(
        ["db", "migrate"],
        ["sned"],
        ["status"],
        ["list", "--limit", "many"],
        ["list", "--statis", "sent"],
        ["list", "--limit", "0"],
        ["list", "--status", "asleep"],
        ["list", "--since", "yesterday"],
    )
    for result in results:
        assert result.code == 2, result
        assert result.err.startswith("error: "), result
        assert result.err.count("\n") == 1, result
        assert not result.out, result
    assert "send" in results[0].err, "it says what was probably meant"
    assert "must be one of pending, sending" in results[5].err
    assert "give a time like 2026-01-31T09:00:00Z, or how long ago, like 2h" in results[6].err


def test_a_wrong_setting_is_named_wherever_it_comes_from(cli: Cli) -> None:
    (cli.folder / "typo.toml").write_text('storre = "x.db"\n')
    (cli.folder / "rule.toml").write_text('[[rules]]\nname = "r"\nbase_ms = "1h"\ncap_ms = "1m"\n')
    (cli.folder / "broken.toml").write_text("store = ")
    typo, rule, broken, missing = cli.many(
        ["--config", "typo.toml", "stats"],
        ["stats", "--config", "rule.toml"],
        ["--config", "broken.toml", "stats"],
        ["--config", "nowhere.toml", "stats"],
    )
    env = cli("stats", HOMING_SLOTS__BULKY="3")
    for result in (typo, rule, broken, missing, env):
        assert result.code == 2, result
        assert result.err.startswith("error: ")
        assert result.err.count("\n") == 1, result
    assert "storre" in typo.err
    assert "did you mean store?" in typo.err
    assert "cap_ms" in rule.err
    assert "must be at least the base" in rule.err
    assert "broken.toml: is not valid TOML" in broken.err
    assert "nowhere.toml: cannot be read" in missing.err
    assert "bulky" in env.err
    assert "did you mean bulk?" in env.err


def test_an_unusable_store_gives_exit_code_4(cli: Cli) -> None:
    (cli.folder / "junk.db").write_bytes(b"this is no database, however long it may be" * 50)
    away, junk, remote = cli.many(
        ["--store", "nowhere/homing.db", "stats"],
        ["--store", "junk.db", "stats"],
        ["--store", "oracle://somewhere", "stats"],
    )
    assert away.code == 4
    assert "its folder does not exist" in away.err
    assert junk.code == 4
    assert "is not an SQLite database" in junk.err
    assert remote.code == 2
    assert "store: " in remote.err


def test_global_options_may_be_before_or_after_the_command(cli: Cli) -> None:
    _, before, after, other, tenant = cli.many(
        ["--store", "a.db", "send", "--to", "ada@example.org", "--channel", "email", "--body", "x"],
        ["--store", "a.db", "list", "--json"],
        ["list", "--json", "--store", "a.db"],
        ["--store", "b.db", "list", "--json", "--store", "a.db"],
        ["list", "--json", "--store", "a.db", "--tenant", "somebody"],
    )
    assert len(before.json["items"]) == 1
    assert before.out == after.out == other.out
    assert tenant.json == {"items": [], "cursor": None, "complete": True}
    assert not (cli.folder / "b.db").exists(), "the later one wins"


def test_a_store_that_did_not_exist_is_pointed_out(cli: Cli) -> None:
    first, second = cli.many(*[["process", "--store", "mispelt.db"]] * 2)
    assert first.err == "note: the store mispelt.db did not exist and was created\n"
    assert second.err == ""


@pytest.mark.parametrize(
    "command",
    [
        "list",
        "find x",
        "waiting",
        "explain x",
        "stats",
        "now",
        "health",
        "dead list",
        "dead resend --all",
        "cancel x",
    ],
)
def test_a_misspelt_store_is_no_empty_queue(cli: Cli, command: str) -> None:
    """A monitor that looks at the wrong file would otherwise report for ever that all is well."""
    read = cli(*command.split(), "--store", "mispelt.db")
    assert (read.code, read.out) == (4, "")
    assert read.err == (
        f"error: the store mispelt.db does not exist in {cli.folder}; "
        "give its address with --store, or create it with `homing db migrate`\n"
    )
    assert not (cli.folder / "mispelt.db").exists()


def test_what_the_settings_say_is_shown_before_the_first_start(cli: Cli) -> None:
    shown = cli.many(["policy", "show"], ["policy", "history"], ["providers", "list"], ["providers", "test"])
    assert [one.code for one in shown] == [0] * 4
    assert "console" in shown[2].out
    assert not (cli.folder / "homing.db").exists()


def test_an_empty_list_is_said_to_be_empty(cli: Cli) -> None:
    told = {
        "list": "no notifications found",
        "waiting": "no notification waits for a retry",
        "dead list": "no dead letters",
        "jobs list": "no jobs",
        "workers": "no workers; start one with `homing worker`",
        "sinks list": "no sinks; a process registers those of its settings when it starts to deliver",
        "providers splits": "no channel has several providers",
        "templates versions hello": "no versions of hello are stored for tenant 'default'",
        "keys list": "no keys; create one with `homing keys create NAME`",
        "audit list": "no audit entries",
        "policy history": "no changes: the policies are those of the settings",
    }
    _, stats, system, *lists = cli.many(
        ["db", "migrate"], ["stats"], ["system"], *[command.split() for command in told]
    )
    assert [(one.code, one.out, one.err) for one in lists] == [(0, "", f"{text}\n") for text in told.values()]
    for page, tables in ((stats, 4), (system, 2)):
        assert page.out.splitlines().count("none") == tables


def test_reading_creates_no_tables_in_a_file_of_others(cli: Cli) -> None:
    (cli.folder / "empty.db").touch()
    read = cli("stats", "--store", "empty.db")
    assert read.code != 0
    assert "empty.db has no schema of Homing. `homing db migrate` creates it." in read.err
