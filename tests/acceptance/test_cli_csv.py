"""`homing send --csv`: many requests, and errors with line numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.cli_driver import SETTINGS, Cli


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    (tmp_path / "homing.toml").write_text(SETTINGS)
    return Cli(tmp_path)


ROWS = (
    "recipient,subject,body,priority,data.order,metadata,id\n"
    'ada@example.org,Hi,Hello,high,7,"{""entry_id"": 1}",1\n'  # line 2
    "not-an-address,Hi,Hello,,,,2\n"  # line 3
    'bob@example.org,Hi,"over\ntwo lines",,,,3\n'  # lines 4 and 5
    "cy@example.org,Hi,Hello,urgent,,,4\n"  # line 6
    "\n"
    "dan@example.org,Hi,Hello\n"  # line 8
    'eve@example.org,Hi,"a\x00b",,,,5\n'  # line 9
    "fay@example.org,Hi,Hello,,,{oops,6\n"  # line 10
    'gus@example.org,"a\nb",Hello,,,,7\n'  # line 11
    "hal@example.org,Hi,Hello,,,,8\n"  # line 13
)


def test_valid_rows_are_accepted_and_every_invalid_one_is_named(cli: Cli) -> None:
    (cli.folder / "people.csv").write_text(ROWS.replace("metadata,id", "metadata,metadata.id"))
    _, sent, listed = cli.many(
        ["db", "migrate"],
        ["send", "--csv", "people.csv", "--channel", "email", "--type", "news"],
        ["list", "--json", "--show-recipients"],
    )
    assert sent.code == 5, sent
    assert sent.out == "9 rows: 3 accepted, 6 rejected\n"
    told = sent.err.splitlines()
    assert told[0] == "line 3: recipient.email: is not an email address like name@example.org"
    assert told[1].startswith("line 6: priority: is 'urgent'")
    assert told[2].startswith("line 8: row: has 3 cells; the header has 7")
    assert told[3].startswith("line 9: content.body: has a control character")
    assert told[4].startswith("line 10: metadata: is not a JSON object")
    assert told[5].startswith("line 11: content.subject: has a line break")
    assert "note: sending the whole file again would repeat" in told[6]

    by_address = {item["recipient"]["email"]: item for item in listed.json["items"]}
    assert set(by_address) == {"ada@example.org", "bob@example.org", "hal@example.org"}
    ada = by_address["ada@example.org"]
    assert (ada["priority"], ada["type"], ada["metadata"]) == ("high", "news", {"entry_id": 1, "id": "1"})
    assert ada["content"]["data"] == {"order": "7"}
    assert by_address["bob@example.org"]["content"]["body"] == "over\ntwo lines"


def test_the_key_column_may_have_any_name(cli: Cli) -> None:
    rows = b"queueID,email,subject,body\n123,ada@example.org,Hi,Hello\n"
    flags = ("--channel", "email", "--idempotency-column", "queueID", "--json")
    assert cli.ok("send", "--csv", "-", *flags, stdin=rows).json["accepted"] == 1
    assert cli.ok("send", "--csv", "-", *flags, stdin=rows).json["duplicates"] == 1


def test_with_a_key_column_a_second_run_repeats_nothing(cli: Cli) -> None:
    rows = ROWS.replace("cy@example.org,Hi,Hello,urgent", "cy@example.org,Hi,Hello,low").encode()
    flags = ("--channel", "email", "--idempotency-column", "id", "--json")
    first = cli("send", "--csv", "-", *flags, stdin=rows)
    assert first.code == 5
    counted = {
        key: first.json[key] for key in ("rows", "accepted", "duplicates", "rejected", "notifications")
    }
    assert counted == {"rows": 9, "accepted": 4, "duplicates": 0, "rejected": 5, "notifications": 4}
    assert first.json["errors"][0] == {
        "line": 3,
        "field": "recipient.email",
        "code": "INVALID_REQUEST",
        "message": "recipient.email: is not an email address like name@example.org",
    }
    mended = rows.replace(b"not-an-address", b"zoe@example.org")
    second = cli("send", "--csv", "-", *flags, stdin=mended).json
    assert (second["accepted"], second["duplicates"], second["rejected"]) == (5, 4, 4)
    assert len(cli.ok("list", "--json").json["items"]) == 5


def test_an_invalid_file_is_refused_before_anything_is_sent(cli: Cli) -> None:
    (cli.folder / "empty.csv").write_text("")
    (cli.folder / "typo.csv").write_text("emial,body\na@b.cc,x\n")
    (cli.folder / "twice.csv").write_text("email,Email,body\na@b.cc,a@b.cc,x\n")
    (cli.folder / "good.csv").write_text("email,body\na@b.cc,x\n")
    (cli.folder / "bad.csv").write_text("email,body\nmissing,x\n")
    (cli.folder / "large.csv").write_text("email,body\na@b.cc," + "x" * 1_048_576 + "\n")
    (cli.folder / "latin1.csv").write_bytes(b"email,body\na@b.cc,caf\xe9\n")
    email = ("--channel", "email")
    missing, empty, typo, twice, column, to, bad, large, latin1, listed = cli.many(
        ["send", "--csv", "gone.csv", *email],
        ["send", "--csv", "empty.csv", *email],
        ["send", "--csv", "typo.csv", *email],
        ["send", "--csv", "twice.csv", *email],
        ["send", "--csv", "good.csv", *email, "--idempotency-column", "id"],
        ["send", "--csv", "good.csv", *email, "--to", "a@b.cc"],
        ["send", "--csv", "bad.csv", *email],
        ["send", "--csv", "large.csv", *email],
        ["send", "--csv", "latin1.csv", *email],
        ["list", "--json"],
    )
    for result, said in (
        (missing, "--csv: gone.csv: No such file"),
        (empty, "empty.csv: is empty; its first line must name the columns"),
        (typo, "line 1: column 'emial' is not a field; did you mean email?"),
        (twice, "column 'email' appears twice"),
        (column, "--idempotency-column: 'id' is not in the header; it has email, body"),
        (to, "--csv: each row names its recipient"),
    ):
        assert (result.code, result.out) == (2, ""), result
        assert said in result.err, result
    assert bad.code == 2, "no row was accepted"
    assert "line 2: content: has 1048576 bytes" in large.err
    assert "line 2: body: is not UTF-8; save the file with the encoding UTF-8" in latin1.err
    assert listed.json["items"] == []


def test_a_table_with_another_encoding_or_separator_is_explained(cli: Cli) -> None:
    (cli.folder / "utf16.csv").write_text("email,body\na@b.cc,x\n", encoding="utf-16")
    (cli.folder / "semicolons.csv").write_text("email;body\na@b.cc;x\n")
    (cli.folder / "tabs.csv").write_text("email\tbody\na@b.cc\tx\n")
    (cli.folder / "data.csv").write_text("email,body,order\na@b.cc,x,7\n")
    utf16, semicolons, tabs, data = cli.many(
        *(
            ["send", "--csv", name, "--channel", "email"]
            for name in ("utf16.csv", "semicolons.csv", "tabs.csv", "data.csv")
        )
    )
    assert [one.code for one in (utf16, semicolons, tabs, data)] == [2, 2, 2, 2]
    assert "utf16.csv: line 1 is not UTF-8; save the file with the encoding UTF-8" in utf16.err
    assert "separate the columns with commas, not with ';'" in semicolons.err
    assert "separate the columns with commas, not with '\\t'" in tabs.err
    assert "column 'order' is not a field; use recipient, channel" in data.err
    assert data.err.endswith("data.*, metadata.*\n"), "not: did you mean provider?"


def test_a_large_file_is_streamed_with_progress(cli: Cli) -> None:
    with (cli.folder / "many.csv").open("w") as file:
        file.write("email,subject,body\n")
        for number in range(3_000):
            file.write(f"reader{number}@example.org,Hi {number},Hello\n")
    sent, stats = cli.many(
        ["send", "--csv", "many.csv", "--channel", "email", "--bulk", "--json"], ["stats", "--json"]
    )
    assert (sent.json["accepted"], sent.json["rejected"], sent.json["errorsLeftOut"]) == (3_000, 0, 0)
    assert stats.json["queueCounts"]["pending"] == 3_000
