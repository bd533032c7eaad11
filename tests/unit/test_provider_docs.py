"""Each provider's docs page has the settings and the error table of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from homing.compose.factories import _EXTRAS as EXTRAS
from homing.compose.factories import PROVIDERS, find_options, import_object
from homing.core.notifications import Channel
from homing.providers.common.error_tables import load_error_table

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs/reference/providers"
WITH_A_PAGE = [kind for kind in PROVIDERS if kind not in ("console", "file", "scripted")]
INJECTED = {"self", "transport", "now_ms"}


def section(kind: str, heading: str) -> str:
    text = (PAGES / f"{kind}.md").read_text(encoding="utf-8")
    found = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"{kind}.md has no section {heading!r}"
    return found[1]


def rows(text: str) -> list[list[str]]:
    """Returns the cells of the section's last table, without its head."""
    table = re.findall(r"(?:^\|.*\|\n?)+", text, re.MULTILINE)[-1]
    return [[cell.strip() for cell in line.strip("| \n").split(" | ")] for line in table.splitlines()[2:]]


@pytest.mark.parametrize("kind", WITH_A_PAGE)
def test_the_error_table_of_a_page_matches_the_code(kind: str) -> None:
    table = load_error_table(kind)
    told = [
        (code.strip("`"), outcome.strip("`"), means) for code, outcome, means in rows(section(kind, "Errors"))
    ]
    meant = [
        (key, one.outcome.value, one.means) for key, one in (*table.codes.items(), *table.statuses.items())
    ]
    assert told == meant


@pytest.mark.parametrize("kind", WITH_A_PAGE)
def test_the_settings_of_a_page_match_the_class(kind: str) -> None:
    told = {name for row in rows(section(kind, "Settings")) for name in re.findall(r"`(\w+)`", row[0])}
    assert told == set(find_options(import_object(PROVIDERS[kind]))) - INJECTED


def test_the_list_of_providers_has_all_of_them_with_their_channels() -> None:
    text = (PAGES / "README.md").read_text(encoding="utf-8").partition("`console`")[0]
    told = {re.findall(r"`(\w+)`", row[0])[0]: row[1] for row in rows(text)}
    assert set(told) == set(WITH_A_PAGE)
    for kind, channels in told.items():
        served = getattr(import_object(PROVIDERS[kind]), "channels", tuple(Channel))
        always = channels.partition(" (")[0]  # in parentheses: those that a setting adds
        assert always == ("all" if set(served) == set(Channel) else ", ".join(served)), kind


def test_the_list_of_providers_shows_receipts_look_ups_and_extras() -> None:
    text = (PAGES / "README.md").read_text(encoding="utf-8").partition("`console`")[0]
    for kind, *_, receipts, look_up, extra in rows(text):
        name = re.findall(r"`(\w+)`", kind)[0]
        provider = import_object(PROVIDERS[name])
        assert (receipts == "yes") == hasattr(provider, "handle_callback"), name
        assert (look_up == "yes") == hasattr(provider, "look_up"), name
        assert extra == f"`{EXTRAS.get(name, 'providers')}`", name


def test_every_error_table_belongs_to_a_provider_and_is_readable() -> None:
    kinds = {path.parent.name for path in (ROOT / "src/homing/providers").rglob("errors.toml")}
    assert kinds == set(WITH_A_PAGE)
    for kind in kinds:
        assert load_error_table(kind).statuses or load_error_table(kind).codes
