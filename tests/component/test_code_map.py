"""The code map follows the code: its hops are compared with the trace of a real send."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import pytest

import walk
from walk import PACKAGE, STEPS, Visit

MAP = Path(__file__).parents[2] / "docs" / "explanation" / "code-map.md"
PAGE = MAP.read_text()
HELPERS = "Helpers on the way"
_PLACE = re.compile(r"`([\w/]+\.py)::([\w.]+)`")
_MODULE = re.compile(r"`([\w/]+\.py)`")
_FILE = re.compile(r"`([\w/]+\.\w+)`|\]\(([\w./-]+\.(?:md|json))\)")

CHANGES = (
    *("a kind of backoff", "a column", "a provider", "a REST endpoint", "a command", "a store operation"),
    *("a metric", "a setting", "a status", "an alert rule", "a sink", "a timer"),
)
"""Changes for which the map lists the files."""

MOST_FILES = {"a column": 4, "a setting": 3, "a status": 8}
"""Change → maximum number of files that it may touch."""


def section(page: str, heading: str) -> str:
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert found, f"the page has no section {heading!r}"
    return found[1]


def hops_of(page: str, step: str) -> list[str]:
    """Returns the functions in the rows of a step, as `path::function`."""
    return ["::".join(place) for place in _PLACE.findall(section(page, step.capitalize()))]


def helpers_of(page: str) -> list[str]:
    """Returns the modules in the first column of the table of helpers."""
    rows = re.findall(r"^\|([^|]*)\|", section(page, HELPERS), re.MULTILINE)
    return [module for cell in rows for module in _MODULE.findall(cell)]


def differences(page: str, visits: Sequence[Visit]) -> list[str]:
    """Returns what the page says about the path of the notification and the trace does not confirm.

    The trace must pass the hops of each step within that step and in the order of the page. Every module that
    the trace enters must have a hop or be listed as a helper, and not both.
    """
    found: list[str] = []
    modules: set[str] = set()
    for step in STEPS:
        order = walk.places([visit for visit in visits if visit.step == step])
        passed = -1
        for hop in hops_of(page, step):
            modules.add(hop.partition("::")[0])
            if hop not in order:
                found.append(f"{step}: the trace does not pass {hop}")
                continue
            if order.index(hop) <= passed:
                found.append(f"{step}: the trace passes {hop} earlier than the hop above it")
            passed = order.index(hop)
    entered, helpers = {visit.path for visit in visits}, helpers_of(page)
    found += [f"helpers: {one} is missing" for one in sorted(entered - modules - set(helpers))]
    found += [f"helpers: {one} is not in the trace" for one in helpers if one not in entered]
    found += [f"helpers: {one} has a hop or is listed twice" for one in helpers if one in modules]
    return found


def change_problems(page: str) -> list[str]:
    """Returns what is wrong with the table of changes: its rows, the files they name, and their numbers."""
    rows = re.findall(
        r"^\| (an? .*?) \| .*? \| (\d+) \| (.*?) \| .*\|$", section(page, "Where do I change …"), re.MULTILINE
    )
    names = [change for change, _, _ in rows]
    found = [] if names == list(CHANGES) else [f"the changes are {names}"]
    for change, after, cell in rows:
        files = [PACKAGE / file if file else MAP.parent / link for file, link in _FILE.findall(cell)]
        found += [f"{change}: there is no {file.name}" for file in files if not file.is_file()]
        if len({file.resolve() for file in files}) != int(after):
            found.append(f"{change}: {after} files, but {len(files)} are named")
        if int(after) > MOST_FILES.get(change, 10):
            found.append(f"{change}: touches {after} files")
    return found


@pytest.fixture(scope="module")
def visits() -> list[Visit]:
    return walk.walk()


def test_the_map_follows_the_trace_of_a_real_send(visits: list[Visit]) -> None:
    found = differences(PAGE, visits)
    assert not found, "\n".join(found)


def test_the_map_has_a_section_for_each_step_in_order_and_numbers_the_hops() -> None:
    headings = re.findall(r"^## (\w+)$", PAGE, re.MULTILINE)
    assert [one for one in headings if one.lower() in STEPS] == [step.capitalize() for step in STEPS]
    numbers = [int(number) for number in re.findall(r"^\| (\d+) \|.*::.*\|$", PAGE, re.MULTILINE)]
    hops = sum(len(hops_of(PAGE, step)) for step in STEPS)
    assert numbers == list(range(1, hops + 1))


def test_everything_else_that_the_map_names_exists() -> None:
    for path, name in _PLACE.findall(PAGE):
        found = import_module("homing." + path.removesuffix(".py").replace("/", "."))
        for part in name.split("."):
            found = getattr(found, part)
        assert callable(found), f"{path}::{name}"
    for module in _MODULE.findall(PAGE):
        assert (PACKAGE / module).is_file(), module


def test_the_picture_shows_the_folders_of_the_package() -> None:
    picture = section(PAGE, "Folders")
    for parent in (PACKAGE, PACKAGE / "core", PACKAGE / "engine", PACKAGE / "stores"):
        for folder in [one.parent for one in parent.glob("*/__init__.py")]:
            assert re.search(rf"\b{folder.name}/", picture), f"{folder.name}/ is missing"
    for named in re.findall(r"(\w+)/(?!\w)", picture):
        assert any(PACKAGE.rglob(f"{named}/__init__.py")), f"there is no folder {named}/"


def test_the_files_of_each_change_exist_and_their_number_is_right() -> None:
    problems = change_problems(PAGE)
    assert not problems, "\n".join(problems)


def test_every_module_of_the_delivery_path_is_in_the_trace(visits: list[Visit]) -> None:
    """A trace that silently lost a thread or a step would confirm almost any map."""
    assert list(dict.fromkeys(visit.step for visit in visits)) == list(STEPS)
    assert {"homing-sqlite-writer", "homing-sqlite-reader"} < {visit.thread for visit in visits}
    assert {"core", "engine", "stores", "providers", "sinks"} < {visit.path.split("/")[0] for visit in visits}


# The comparison itself ---------------------------------------------------------------------------------


def test_a_renamed_function_is_noticed(visits: list[Visit]) -> None:
    page = PAGE.replace("decide.py::decide`", "decide.py::choose`", 1)
    assert differences(page, visits) == [
        "decide: the trace does not pass core/retry/decide.py::choose",
    ]


def test_a_hop_that_moved_to_another_module_is_noticed(visits: list[Visit]) -> None:
    page = PAGE.replace("`sinks/callback.py::", "`sinks/log.py::", 1)
    assert differences(page, visits) == [
        "outbox: the trace does not pass sinks/log.py::CallbackSink.publish",
        "helpers: sinks/callback.py is missing",
    ]


def test_hops_in_the_wrong_order_are_noticed(visits: list[Visit]) -> None:
    first, second = "`core/lifecycle/rows.py::settle`", "`core/lifecycle/row_events.py::events_of`"
    page = PAGE.replace(first, "FIRST", 1).replace(second, first, 1).replace("FIRST", second, 1)
    assert differences(page, visits) == [
        "settle: the trace passes core/lifecycle/rows.py::settle earlier than the hop above it",
    ]


def test_a_hop_in_the_wrong_step_is_noticed(visits: list[Visit]) -> None:
    page = PAGE.replace("`core/lifecycle/rows.py::new_row`", "`core/retry/decide.py::decide`", 1)
    assert "accept: the trace does not pass core/retry/decide.py::decide" in differences(page, visits)


def test_helpers_that_are_missing_unused_or_repeated_are_noticed(visits: list[Visit]) -> None:
    page = PAGE.replace(
        "| `engine/upkeep/alerts.py` |", "| `engine/upkeep/outbox_relay.py`, `core/errors.py` |", 1
    )
    assert differences(page, visits) == [
        "helpers: engine/upkeep/alerts.py is missing",
        "helpers: core/errors.py is not in the trace",
        "helpers: engine/upkeep/outbox_relay.py has a hop or is listed twice",
    ]


def test_a_change_without_its_row_or_with_a_wrong_file_or_number_is_noticed() -> None:
    page = PAGE.replace(
        "| a metric | 4 | 3 | `telemetry/metric_catalog.py`", "| a metric | 4 | 3 | `telemetry/list.py`"
    )
    page = page.replace("| a setting | 6 | 3 |", "| a setting | 6 | 4 |")
    page = page.replace("| a timer | – | 1 |", "| timer | – | 1 |")
    assert change_problems(page) == [
        f"the changes are {list(CHANGES[:-1])}",
        "a metric: there is no list.py",
        "a setting: 4 files, but 3 are named",
        "a setting: touches 4 files",
    ]


# The tool ----------------------------------------------------------------------------------------------


def test_a_further_trace_passes_the_same_functions() -> None:
    """On a busy machine a periodic task may run during a trace, so the first few may differ."""
    before = sys.getprofile(), threading.getprofile()
    traces: list[list[tuple[str, str]]] = []
    while len(traces) < 10:
        traces.append(sorted((one.step, one.place) for one in walk.walk()))
        assert (sys.getprofile(), threading.getprofile()) == before
        if traces[-1] in traces[:-1]:
            return
    pytest.fail("no two of ten traces passed the same functions")


def test_a_trace_in_which_a_step_never_begins_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STEPS, "decide", "core/retry/decide.py::choose")
    with pytest.raises(LookupError, match=r"decide: core/retry/decide\.py::choose"):
        walk.walk()


def test_the_table_lists_each_function_once_per_step_within_110_columns(visits: list[Visit]) -> None:
    lines = list(walk.report(visits))
    assert max(map(len, lines)) <= 110
    names = ", ".join(line[50:].strip(", ") for line in lines if line.startswith(" ")).split(", ")
    assert len(names) == len({(visit.step, visit.place) for visit in visits})
    count = walk.totals(visits)
    assert lines[-1].startswith(f"{count.modules} modules, {count.functions} functions, {count.hops} hops")


def test_the_raw_trace_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert walk.main(["--json"]) == 0
    raw = json.loads(capsys.readouterr().out)
    first, last = raw["calls"][0], raw["calls"][-1]
    assert (first["step"], first["path"], first["function"]) == ("accept", "library.py", "Homing.send")
    assert last["step"] == "outbox"
    assert raw["totals"]["calls"] == len(raw["calls"])
