"""Writes the tables of docs/reference/rest-api.md: the endpoints and the error codes, from the code itself.

`--check` only says whether they are what would be written.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from homing.api.all_routes import all_routes
from homing.api.errors import CODES
from homing.api.routing import Route

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "rest-api.md"
_TABLE = re.compile(r"(<!-- (\w+): written by tools/make_reference.py -->\n).*?(<!-- end -->)", re.DOTALL)


def endpoints() -> Iterator[str]:
    """A heading and a table for each subject."""
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
    """All codes, by status."""
    yield "\n| code | status | meaning |\n|---|---|---|\n"
    for code, known in CODES.items():
        yield f"| `{code}` | {known.status} | {known.meaning} |\n"
    yield "\n"


TABLES = {"endpoints": endpoints, "errors": errors}


def written(page: str) -> str:
    """The page with its tables as they are now."""
    return _TABLE.sub(lambda found: f"{found[1]}{''.join(TABLES[found[2]]())}{found[3]}", page)


def main() -> int:
    there = PAGE.read_text()
    made = written(there)
    if "--check" in sys.argv:
        print("up to date" if made == there else f"not up to date: {PAGE.name}")
        return made != there
    PAGE.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
