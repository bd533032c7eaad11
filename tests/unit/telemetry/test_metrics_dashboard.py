"""The dashboard and the docs about metrics mention only existing metrics, and all of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from homing.telemetry.metric_catalog import CATALOGUE, Metric

DOCS = Path(__file__).parents[3] / "docs"
DASHBOARD = json.loads((DOCS / "grafana" / "homing.json").read_text(encoding="utf-8"))
BY_NAME = {metric.name: metric for metric in CATALOGUE}
SERIES = {
    **{name: metric for name, metric in BY_NAME.items() if metric.kind != "histogram"},
    **{
        f"{name}_{ending}": metric
        for name, metric in BY_NAME.items()
        if metric.kind == "histogram"
        for ending in ("bucket", "sum", "count")
    },
}
"""Metrics by the name that a query uses."""

FOREIGN_LABELS = {"job", "instance", "le"}
"""Labels that Prometheus adds."""

_SELECTED = re.compile(r"\b((?:homing|retry|retries)_\w+)(?:\{([^}]*)\})?")


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def queries() -> Iterator[str]:
    for panel in panels():
        yield from (target["expr"] for target in panel["targets"])
    yield from (v["definition"] for v in DASHBOARD["templating"]["list"] if "definition" in v)
    howto = (DOCS / "howto" / "watch-homing.md").read_text(encoding="utf-8")
    yield from re.findall(r"^ +expr: (.+)$", howto, re.MULTILINE)
    for row in re.findall(r"^\| [^|]+\? \| (.+) \|$", howto, re.MULTILINE):
        yield from re.findall(r"`([^`]+)`", row)


@pytest.mark.parametrize("query", sorted(set(queries())))
def test_a_query_uses_only_existing_metrics_and_labels(query: str) -> None:
    selected = _SELECTED.findall(query)
    assert selected, query
    labels = FOREIGN_LABELS.union(*(SERIES[name].labels for name, _ in selected))
    for name, matchers in selected:
        named = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
        assert named <= FOREIGN_LABELS | set(SERIES[name].labels), query
    for group in re.findall(r"\bby \(([^)]*)\)", query):
        assert {label.strip() for label in group.split(",")} <= labels, query


@pytest.mark.parametrize("query", sorted(set(queries())))
def test_the_syntax_of_a_query_is_complete(query: str) -> None:
    for opened, closed in ("()", "[]", "{}"):
        assert query.count(opened) == query.count(closed), query
    for name, _ in _SELECTED.findall(query):
        if SERIES[name].kind != "gauge":  # a counter without rate() is meaningless
            assert re.search(rf"(?:rate|increase)\({name}[^\[]*\[", query), query
        elif SERIES[name].labels or "retry" in name:
            assert re.search(
                rf"(?:max|min|sum|count|absent|label_values)[^()]*(?:\([^()]*\) )?\({name}", query
            ), query


def test_every_metric_is_on_the_dashboard() -> None:
    shown = {SERIES[name].name for query in queries() for name, _ in _SELECTED.findall(query)}
    assert shown == set(BY_NAME)


def test_it_has_the_fields_that_grafana_requires() -> None:
    assert DASHBOARD["title"] == "Homing"
    assert DASHBOARD["schemaVersion"] >= 36
    assert "id" not in DASHBOARD, "an id belongs to one installation"
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert variables == {"datasource", "job"}
    for panel in panels():
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["title"]
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)


def test_no_two_panels_overlap_and_all_are_inside_the_grid() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


def test_the_legends_name_labels_that_their_queries_keep() -> None:
    for panel in panels():
        for target in panel["targets"]:
            kept = {
                label.strip()
                for group in re.findall(r"\bby \(([^)]*)\)", target["expr"])
                for label in group.split(",")
            }
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= kept, panel["title"]


# The reference ---------------------------------------------------------------------------------------


def rows(heading: str) -> list[list[str]]:
    page = (DOCS / "reference" / "metrics.md").read_text(encoding="utf-8")
    section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_the_reference_matches_the_catalogue() -> None:
    told = [
        Metric(name.strip("` "), kind, tuple(re.findall(r"`(\w+)`", labels)), help)  # type: ignore[arg-type]
        for name, kind, labels, help in rows("All metrics")
    ]
    assert told == [Metric(m.name, m.kind, m.labels, m.help) for m in CATALOGUE]


def test_exactly_the_existing_labels_are_described() -> None:
    assert {row[0].strip("` ") for row in rows("Labels")} == {label for m in CATALOGUE for label in m.labels}


def test_the_names_of_metrics_follow_the_conventions_of_prometheus() -> None:
    for metric in CATALOGUE:
        assert re.fullmatch(r"(homing|retry|retries)_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert metric.name.endswith("_seconds") or metric.kind != "histogram", metric.name
        assert (metric.kind == "histogram") == bool(metric.buckets)
