"""Generates the tables of endpoints and error codes in docs/reference/rest-api.md from the code.

With `--check`, it only reports whether the tables are up to date.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from homing.api.all_routes import all_routes
from homing.api.http.errors import ERROR_CODES
from homing.api.http.routing import Route

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "rest-api.md"
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


TABLES = {"endpoints": endpoints, "errors": errors}


def with_tables(page: str) -> str:
    """Returns the page with regenerated tables."""
    return _TABLE.sub(lambda found: f"{found[1]}{''.join(TABLES[found[2]]())}{found[3]}", page)


def main() -> int:
    current = PAGE.read_text()
    generated = with_tables(current)
    if "--check" in sys.argv:
        print("up to date" if generated == current else f"not up to date: {PAGE.name}")
        return generated != current
    PAGE.write_text(generated)
    return 0


if __name__ == "__main__":
    sys.exit(main())
