"""`homing templates`: list, check, preview; and the how-to page, followed literally."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from support.cli_driver import Cli

PAGE = (Path(__file__).parents[2] / "docs/howto/write-templates.md").read_text(encoding="utf-8")
SMS = "templates/order_confirmed/de-DE/sms.txt"


def page_files() -> dict[str, str]:
    """Returns the page's code blocks that start with a file name."""
    blocks = re.findall(r"^```\w+\n# (\S+\.\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return dict(blocks)


def page_commands() -> list[tuple[str, str]]:
    """Returns (command, output shown on the page)."""
    found: list[tuple[str, str]] = []
    for block in re.findall(r"^```console\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        for command in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, output = command.partition("\n")
            found.append((line, output))
    return found


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    for name, text in page_files().items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if name == "homing.toml" else text.rstrip("\n") + "\n", encoding="utf-8")
    return Cli(tmp_path)


def test_the_page_followed_literally_gives_its_output_and_sends(cli: Cli) -> None:
    import shlex

    assert len(page_files()) == 9
    for line, told in page_commands():
        done = cli.ok(*shlex.split(line)[1:])
        if told:
            assert done.out == told, line
    cli.ok("process")
    (sent,) = (cli.folder / "sent.jsonl").read_text(encoding="utf-8").splitlines()
    assert msgspec.json.decode(sent)["content"]["subject"] == "Ihre Bestellung 4711"
    (found,) = cli.ok("list", "--json").json["items"]
    listed = cli.ok("templates", "list", "--json").json
    version = listed[0]["locales"]["de-DE"]["version"]
    assert (found["templateKey"], found["templateVersion"], found["locale"]) == (
        "order_confirmed",
        version,
        "de-DE",
    )


def test_the_page_lists_all_filters() -> None:
    from homing.rendering.filters import allowed_filters

    paragraph = PAGE.partition("Filters: ")[2].partition(" Functions:")[0]
    assert re.findall(r"`(\w+)`", paragraph) == sorted(name for name in allowed_filters() if " " not in name)


def test_the_limits_on_the_page_match_the_code() -> None:
    from homing.rendering import render_budget

    bounds = PAGE.partition("## What is guaranteed")[2]
    assert f"{render_budget.MAX_STEPS:,} steps" in bounds
    assert f"{render_budget.MAX_CHARACTERS:,} characters" in bounds
    assert f"{render_budget.MAX_CPU_SECONDS} s of processor" in bounds


def test_the_list_has_locales_versions_and_channels(cli: Cli) -> None:
    page, data = cli.many(["templates", "list"], ["templates", "list", "--json"])
    lines = [line.split() for line in page.out.splitlines()]
    assert lines[0] == ["KEY", "LOCALE", "VERSION", "CHANNELS"]
    assert [line[:2] + line[3:] for line in lines[1:]] == [
        ["order_confirmed", locale, "email,", "sms"] for locale in ("de-DE", "en-US")
    ]
    (one,) = data.json
    assert one["locales"]["en-US"] == {"version": lines[2][2], "channels": ["email", "sms"]}


def test_a_check_with_findings_prints_them_and_ends_with_exit_code_1(cli: Cli) -> None:
    (cli.folder / SMS).write_text("Hallo {{ nme }}\n")
    shipped = cli.folder / "templates/order_shipped"
    (shipped / "en-US").mkdir(parents=True)
    (shipped / "sample.json").write_text("{}")
    (shipped / "en-US/sms.txt").write_text("On its way\n")
    page, data = cli.many(["templates", "check"], ["templates", "check", "--json"])
    assert (page.code, data.code) == (1, 1)
    assert page.out == (
        "KEY              en-US  de-DE\n"
        "order_confirmed  ok     wrong\n"
        "order_shipped    ok     missing\n"
        "order_confirmed/de-DE/sms.txt, line 1: 'nme' is undefined\n"
        "order_shipped/de-DE: is missing\n"
        "2 templates in 2 locales: 2 problems\n"
    )
    assert data.json["keys"] == ["order_confirmed", "order_shipped"]
    assert data.json["findings"][1] == {
        "message": "order_shipped/de-DE: is missing",
        "key": "order_shipped",
        "locale": "de-DE",
        "missing": True,
    }


def test_a_preview_accepts_other_data_and_prints_json(cli: Cli) -> None:
    bob = b'{"name": "Bob", "number": 1, "items": []}'
    (cli.folder / "bob.json").write_bytes(bob)
    options = ["templates", "preview", "order_confirmed", "--channel", "email", "--data"]
    assert "Hello Bob, we have your order 1:" in cli.ok(*options, "bob.json").out
    found = cli.ok(*options, "-", "--json", stdin=bob).json
    assert (found["locale"], found["contents"]["email"]["subject"]) == ("en-US", "Your order 1")
    assert set(cli.ok("templates", "preview", "order_confirmed", "--json").json["contents"]) == {
        "email",
        "sms",
    }


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["order_confirmd"], "templateKey: 'order_confirmd' does not exist; did you mean 'order_confirmed'?"),
        (["order_confirmed", "--locale", "fr"], "--locale: is 'fr'; declared locales are en-US, de-DE"),
        (["order_confirmed", "--channel", "fax"], "--channel: is 'fax'; it must be one of"),
        (["order_confirmed", "--channel", "push"], "has no content for push in en-US, only for email, sms"),
        (["order_confirmed", "--data", "none.json"], "--data: none.json: No such file or directory"),
    ],
)
def test_an_impossible_preview_prints_the_reason(cli: Cli, argv: list[str], says: str) -> None:
    done = cli("templates", "preview", *argv)
    assert done.code == 2
    assert says in done.err


def test_invalid_data_is_reported_with_file_and_line(cli: Cli) -> None:
    done = cli("templates", "preview", "order_confirmed", "--data", "-", stdin=b"{}")
    assert done.code == 2
    assert "order_confirmed/en-US/email.html, line 3: 'name' is undefined" in done.err


def test_without_a_folder_the_error_says_what_to_set(tmp_path: Path) -> None:
    done = Cli(tmp_path)("templates", "check")
    assert (done.code, done.out) == (2, "")
    assert "templates.folder: is not set; set it to the folder of your templates" in done.err


def test_tenants_templates_are_listed_checked_and_shown_with_the_tenant_s_name(cli: Cli) -> None:
    from homing import Channel, SyncHoming, Template, TemplateParts

    parts = {Channel.SMS: TemplateParts(text="Hi {{ name }}")}
    settings = {"locales": ["en-US", "de-DE"]}
    with SyncHoming(cli.folder / "homing.db", templates=settings) as homing:
        written = Template(key="hi", locales={"en-US": parts, "de-DE": parts}, sample={"name": "Ada"})
        homing.call(lambda engine: engine.of("acme").templates.put(written, who="ada"))
    listed, checked, shown, without = cli.many(
        ["templates", "list", "--tenant", "acme"],
        ["templates", "check", "--tenant", "acme"],
        ["templates", "preview", "hi", "--tenant", "acme"],
        ["templates", "list", "--tenant", "other", "--json"],
    )
    rows = [line.split() for line in listed.out.splitlines()]
    assert rows[1] == ["hi", "en-US", "1", "own", "sms"]
    assert {row[0] for row in rows[1:]} == {"hi", "order_confirmed"}
    assert "2 templates in 2 locales: no problems" in checked.out
    assert shown.out.splitlines()[0] == "hi in en-US, version 1"
    assert [one["key"] for one in without.json] == ["order_confirmed"]


def test_an_earlier_version_is_listed_and_restored(cli: Cli) -> None:
    from homing import Channel, Homing, SyncHoming, Template, TemplateParts

    async def write(engine: Homing) -> None:
        for text in ("first", "second"):
            parts = {Channel.SMS: TemplateParts(text=text)}
            written = Template(key="hi", locales={"en-US": parts, "de-DE": parts})
            await engine.templates.put(written, who="ada")

    with SyncHoming(cli.folder / "homing.db", templates={"locales": ["en-US", "de-DE"]}) as homing:
        homing.call(write)
    table, listed = cli.many(["templates", "versions", "hi"], ["templates", "versions", "hi", "--json"])
    assert [one["version"] for one in listed.json["items"]] == [2, 1]
    assert table.out.splitlines()[1].split()[0] == "2"
    assert cli("templates", "restore", "hi", "9").code == 3
    restored = cli.ok("templates", "restore", "hi", "1", "--who", "grace").out
    assert restored == "hi: version 1 is restored as version 3\n"
    newest = cli.ok("templates", "versions", "hi", "--json").json["items"][0]
    assert (newest["version"], newest["updatedBy"]) == (3, "grace")
    recorded = cli.ok("audit", "list", "--json").json["items"]
    assert [one["target"] for one in recorded if one["action"] == "template.restore"] == ["hi"]


@pytest.mark.source("002", "428-429")
def test_a_missing_locale_is_reported_by_the_doctor_and_stops_a_deployment(cli: Cli) -> None:
    settings = cli.folder / "homing.toml"
    settings.write_text('preset = "channel"\n' + settings.read_text(encoding="utf-8"), encoding="utf-8")
    cli.ok("db", "migrate")
    complete = cli("doctor", "--json").json["checks"]
    assert [check["ok"] for check in complete if check["name"] == "templates"] == [True]
    for path in (cli.folder / SMS).parent.iterdir():
        path.unlink()
    doctor, worker, service = cli("doctor"), cli("worker"), cli("serve", "--listen", "127.0.0.1:0")
    assert doctor.code == 1
    assert "order_confirmed/de-DE: is missing → run `homing templates check`" in doctor.out
    for refused in (worker, service):
        assert refused.code == 2, refused
        assert (
            "templates: order_confirmed/de-DE: missing; the preset channel needs every template"
            in refused.err
        )
