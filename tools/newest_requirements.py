"""Prints the project's requirements without upper bounds. `make check-latest` calls this script.

Its output overrides the bounds of `pyproject.toml`, so that the newest releases are installed although the
project does not allow them yet. Exclusions of single releases stay.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

PROJECT_FILE = Path(__file__).parents[1] / "pyproject.toml"


def unbounded_requirements(project_file: Path = PROJECT_FILE) -> Iterator[str]:
    """Yields every requirement that has an upper bound, without that bound."""
    read = tomllib.loads(project_file.read_text(encoding="utf-8"))
    needs = [*read["project"]["dependencies"]]
    for group in (read["project"]["optional-dependencies"], read["dependency-groups"]):
        needs += [need for members in group.values() for need in members]
    for need in dict.fromkeys(needs):
        match = re.fullmatch(r"([\w.-]+(?:\[[\w,-]+\])?)([<>=!~].*)", need)
        if match is None:
            continue
        kept = [part for part in match[2].split(",") if not part.startswith("<")]
        if len(kept) < len(match[2].split(",")):
            yield match[1] + ",".join(kept)


if __name__ == "__main__":
    print(*unbounded_requirements(), sep="\n")
