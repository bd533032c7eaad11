"""`docs/reference/cli.md` has every command with every flag, and no others."""

from __future__ import annotations

import re
from itertools import takewhile
from pathlib import Path

from homing.cli.common.exit_codes import ExitCode
from support.cli_driver import Cli
from support.docs_pages import inline_code

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
GROUPS = (
    "bridge",
    "dead",
    "jobs",
    "providers",
    "sinks",
    "policy",
    "templates",
    "settings",
    "keys",
    "tenants",
    "audit",
    "db",
)
EVERYWHERE = {"--config", "--store", "--tenant", "--no-color", "--show-recipients", "--help", "-h"}


def test_the_reference_has_exactly_the_existing_commands_and_flags(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    sections = re.split(r"^### homing ", PAGE, flags=re.MULTILINE)[1:]
    documented = {section.partition("\n")[0]: section for section in sections}
    top, *groups = cli.many(["--help"], *[[group, "--help"] for group in GROUPS])
    known = _commands(top.out) - set(GROUPS)
    for group, page in zip(GROUPS, groups, strict=True):
        known |= {f"{group} {name}" for name in _commands(page.out)}
    assert set(documented) == known
    helps = cli.many(*[[*name.split(), "--help"] for name in documented])
    for (name, section), page in zip(documented.items(), helps, strict=True):
        rows = [line.partition(" | ")[0] for line in section.splitlines() if line.startswith("| `")]
        told = {flag for row in rows for flag in re.findall(r"`(--?[a-z][\w-]*)", row)}
        assert told == _flags(page.out) - EVERYWHERE, name
        assert _arguments_told(section) == _arguments(page.out), name


def test_the_index_of_the_reference_links_to_every_command() -> None:
    names = re.findall(r"^### (homing .*)$", PAGE, flags=re.MULTILINE)
    index = PAGE.partition("\n## ")[0]
    assert [name for name in names if f"](#{name.replace(' ', '-')})" not in index] == []


def test_the_commands_in_sentences_and_tables_exist_with_their_flags(tmp_path: Path) -> None:
    """Commands in blocks of their own are run by `test_docs_pages.py`."""
    pages = sorted((Path(__file__).parents[2] / "docs" / "coming-from").glob("*.md"))
    quoted = {code: page for page in pages for code in inline_code(page) if code.startswith("homing ")}
    named = {code: list(takewhile(str.islower, code.split()[1:3])) for code in quoted}
    commands = {code: words if words[0] in GROUPS else words[:1] for code, words in named.items()}
    helps = Cli(tmp_path).many(*[[*command, "--help"] for command in commands.values()])
    for (code, page), shown in zip(quoted.items(), helps, strict=True):
        assert shown.code == 0, f"{page.name}: {code}: {shown.err}"
        flags = set(re.findall(r"(?<= )--?[a-z][\w-]*", code))
        assert flags <= _flags(shown.out) | EVERYWHERE, f"{page.name}: {code}"


def test_every_exit_code_is_in_the_reference() -> None:
    told = {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, flags=re.MULTILINE)}
    assert told == {int(code) for code in ExitCode}


def _commands(page: str) -> set[str]:
    listed = page.partition("\nCommands:\n")[2].partition("\n\n")[0]
    return set(re.findall(r"^  ([a-z][\w-]*) ", listed, flags=re.MULTILINE))


def _arguments(page: str) -> list[str]:
    """Returns the names of the arguments on a page of help, without brackets and dots."""
    listed = page.partition("\nArguments:\n")[2].partition("\n\n")[0]
    return [name.strip("[].") for name in re.findall(r"^  (\S+)  ", listed, flags=re.MULTILINE)]


def _arguments_told(section: str) -> list[str]:
    """Returns the names of the arguments in the first table of a section, without brackets and dots."""
    table = re.search(r"(?:^\|.*\n)+", section, flags=re.MULTILINE)
    names = re.findall(r"^\| `([^-`][^`]*)`", table[0] if table else "", flags=re.MULTILINE)
    return [name.strip("[].").replace("&#124;", "|") for name in names]


def _flags(page: str) -> set[str]:
    listed = page.partition("\nOptions:\n")[2]
    starts = re.findall(r"^  (-.*?)(?:  |$)", listed, flags=re.MULTILINE)
    return {flag for start in starts for flag in re.findall(r"(?:^|[ /])(--?[a-z][\w-]*)", start)}
