"""Generates parts of the reference from the code.

These are the endpoints and error codes of the REST API, the names of the fields of a notification, and the
metrics.

With `--check`, it only reports whether the pages are up to date.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from homing.api.all_routes import all_routes
from homing.api.http.errors import ERROR_CODES
from homing.api.http.routing import Route
from homing.core.notifications import Notification
from homing.telemetry.metric_catalog import CATALOGUE

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
PAGES = ("rest-api.md", "python-api.md", "metrics.md")
_TABLE = re.compile(r"(<!-- (\w+): written by tools/make_reference.py -->\n).*?(<!-- end -->)", re.DOTALL)


def endpoints() -> Iterator[str]:
    """Yields a heading and a table of endpoints for each subject."""
    subjects: dict[str, list[Route]] = {}
    for route in all_routes():
        subjects.setdefault(route.tag, []).append(route)
    for tag, routes in subjects.items():
        yield f"\n### {tag}\n\n| | | scope | |\n|---|---|---|---|\n"
        for route in routes:
            scopes = ", ".join(f"`{scope.value}`" for scope in route.scopes) or "–"
            summary = " ".join(route.summary.partition("\n\n")[0].split()).replace("|", "\\|")
            yield f"| {route.method} | `{route.path}` | {scopes} | {summary} |\n"
    yield "\n"


def errors() -> Iterator[str]:
    """Yields the table of error codes, ordered by status."""
    yield "\n| code | status | meaning |\n|---|---|---|\n"
    for code, known in ERROR_CODES.items():
        yield f"| `{code}` | {known.status} | {known.meaning} |\n"
    yield "\n"


def notification() -> Iterator[str]:
    """Yields the names of the fields of a notification."""
    names = ", ".join(f"`{name}`" for name in Notification.__struct_fields__)
    yield textwrap.fill(f"{names}.", width=110)
    yield "\n"


def metrics() -> Iterator[str]:
    """Yields the table of metrics, in the order of the catalogue."""
    yield "\n| name | kind | labels | meaning |\n|---|---|---|---|\n"
    for metric in CATALOGUE:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        yield f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |\n"
    yield "\n"


TABLES = {"endpoints": endpoints, "errors": errors, "notification": notification, "metrics": metrics}


def with_tables(page: str) -> str:
    """Returns the page with regenerated tables."""
    return _TABLE.sub(lambda found: f"{found[1]}{''.join(TABLES[found[2]]())}{found[3]}", page)


def main() -> int:
    pages = {REFERENCE / name: (REFERENCE / name).read_text() for name in PAGES}
    changed = {path: new for path, current in pages.items() if (new := with_tables(current)) != current}
    if "--check" in sys.argv:
        print(f"not up to date: {', '.join(path.name for path in changed)}" if changed else "up to date")
        return bool(changed)
    for path, new in changed.items():
        path.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
