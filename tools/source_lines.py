"""Reports which lines of the five source documents are tested, and why the others are not.

Homing unites five existing designs, the sources 000 to 004. A test that checks lines of a source names them:

    @pytest.mark.source("003", "116-149", "345")

`tests/acceptance/source_lines.toml` has the number of lines of each source, and the reason for every line
that no test checks. `make source-lines` prints the report, and `tests/unit/test_source_lines.py` fails if a
line has neither a test nor a reason, or both.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
REASONS_FILE = "tests/acceptance/source_lines.toml"
KEYS = {"title", "lines", "prose", "decided_otherwise", "planned"}
MARKER_TEXT = "mark.source("
WIDTHS = (6, 6, 6, 10, 8, 6)
"""The widths of the columns with numbers."""


@dataclass(frozen=True)
class Reason:
    """Why no test checks a line."""

    kind: str
    """`prose`, `decided otherwise` or `planned`."""
    text: str = ""
    """What Homing does instead, or what is missing. Empty for prose."""

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}" if self.text else self.kind


@dataclass
class Source:
    """One source document, by its lines."""

    title: str
    lines: int
    reasons: dict[int, Reason] = field(default_factory=dict)
    tests: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))

    def count(self, kind: str) -> int:
        return sum(reason.kind == kind for reason in self.reasons.values())

    def open_lines(self) -> list[int]:
        """Returns the lines that have neither a test nor a reason."""
        return [
            line for line in range(1, self.lines + 1) if line not in self.tests and line not in self.reasons
        ]


@dataclass(frozen=True)
class Report:
    """All sources by their number, and what is wrong with the markers and the reasons."""

    sources: dict[str, Source]
    problems: list[str]


def read_report(root: Path = ROOT) -> Report:
    """Reads the reasons and the markers of all tests below `root`."""
    sources: dict[str, Source] = {}
    problems: list[str] = []
    for number, table in tomllib.loads((root / REASONS_FILE).read_text(encoding="utf-8")).items():
        sources[number] = _read_source(root, number, table, problems)
    for path in sorted((root / "tests").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if MARKER_TEXT in text:
            _read_markers(path.relative_to(root / "tests"), text, sources, problems)
    for number, source in sources.items():
        both = sorted(source.reasons.keys() & source.tests.keys())
        for first, last in _ranges(both):
            tests, reason = ", ".join(source.tests[first]), source.reasons[first]
            problems.append(
                f"source {number}, {_lines(first, last)}: checked by {tests}, and listed as {reason}"
            )
        for first, last in _ranges(source.open_lines()):
            problems.append(f"source {number}, {_lines(first, last)}: neither a test nor a reason")
    return Report(sources, problems)


def _read_source(root: Path, number: str, table: dict[str, Any], problems: list[str]) -> Source:
    source = Source(table["title"], table["lines"])
    where = f"{REASONS_FILE}, source {number}"
    if unknown := table.keys() - KEYS:
        problems.append(f"{where}: unknown keys {', '.join(sorted(unknown))}")
    entries: list[tuple[Reason, list[str]]] = [(Reason("prose"), table.get("prose", []))]
    for entry in table.get("decided_otherwise", []):
        entries.append((Reason("decided otherwise", f"{entry['reason']} ({entry['page']})"), entry["lines"]))
        if not (root / "docs" / entry["page"]).is_file():
            problems.append(f"{where}: docs/{entry['page']} does not exist")
    entries += [(Reason("planned", entry["reason"]), entry["lines"]) for entry in table.get("planned", [])]
    for reason, texts in entries:
        for line in _lines_of(texts, source, where, problems):
            if line in source.reasons:
                problems.append(f"{where}: line {line} is listed twice")
            source.reasons[line] = reason
    return source


def _read_markers(path: Path, text: str, sources: dict[str, Source], problems: list[str]) -> None:
    for test, call in _marker_calls(ast.parse(text), ()):
        where = f"tests/{path}:{call.lineno}"
        arguments = [one.value if isinstance(one, ast.Constant) else None for one in call.args]
        texts = [one for one in arguments if isinstance(one, str)]
        if call.keywords or len(texts) < len(arguments) or len(texts) < 2:
            problems.append(f'{where}: write the marker as source("003", "116-149", "345")')
        elif texts[0] not in sources:
            problems.append(f"{where}: there is no source {texts[0]}")
        elif any(not name.startswith(("test_", "Test")) for name in test[:1]):
            problems.append(f"{where}: {test[0]} is not a test")
        else:
            source, name = sources[texts[0]], "::".join((str(path), *test))
            for line in _lines_of(texts[1:], source, where, problems):
                if name not in source.tests[line]:
                    source.tests[line].append(name)


def _marker_calls(node: ast.AST, test: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], ast.Call]]:
    """Yields every use of the marker, with the names of the class and the function that it belongs to."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        test = (*test, node.name)
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("mark.source"):
        yield test, node
    for child in ast.iter_child_nodes(node):
        yield from _marker_calls(child, test)


def _lines_of(texts: Iterable[str], source: Source, where: str, problems: list[str]) -> Iterator[int]:
    """Yields the lines of texts such as `116-149` and `345`."""
    for text in texts:
        first, _, last = text.partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()) or int(first) > int(last or first):
            problems.append(f"{where}: {text!r} is neither a line nor a range of lines")
        elif not 1 <= int(first) <= int(last or first) <= source.lines:
            problems.append(f"{where}: {text!r} is outside of the {source.lines} lines of the source")
        else:
            yield from range(int(first), int(last or first) + 1)


def _ranges(lines: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yields the first and the last line of each run of consecutive lines."""
    for _, group in itertools.groupby(enumerate(lines), key=lambda pair: pair[1] - pair[0]):
        run = [line for _, line in group]
        yield run[0], run[-1]


def _lines(first: int, last: int) -> str:
    return f"line {first}" if first == last else f"lines {first}-{last}"


def format_table(sources: dict[str, Source]) -> Iterator[str]:
    """Yields one row per source: the number of its lines, and how many have a test or a reason."""
    yield _table_row("source", ("lines", "tests", "prose", "otherwise", "planned", "open"))
    totals = [0] * 6
    for number, source in sources.items():
        kinds = [source.count(kind) for kind in ("prose", "decided otherwise", "planned")]
        numbers = [source.lines, len(source.tests), *kinds, len(source.open_lines())]
        totals = [total + one for total, one in zip(totals, numbers, strict=True)]
        yield _table_row(f"{number} {source.title}", numbers)
    yield _table_row("total", totals)


def _table_row(name: str, cells: Iterable[object]) -> str:
    return f"{name:<42} " + " ".join(f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS, strict=True))


def format_source(number: str, source: Source) -> Iterator[str]:
    """Yields the lines of a source in ranges, each with its tests or its reason."""
    yield f"Source {number}: {source.title}"

    def answer(line: int) -> list[str]:
        return source.tests.get(line) or [str(source.reasons.get(line, "OPEN: neither a test nor a reason"))]

    for texts, group in itertools.groupby(range(1, source.lines + 1), key=answer):
        lines = list(group)
        span = str(lines[0]) if len(lines) == 1 else f"{lines[0]}-{lines[-1]}"
        yield f"{span:>9}  {texts[0]}"
        yield from (f"{'':>9}  {text}" for text in texts[1:])


def main() -> int:
    parser = argparse.ArgumentParser(description="Report which lines of the source documents are tested.")
    parser.add_argument(
        "sources", nargs="*", help="numbers of the sources to list, such as 003; default: all"
    )
    chosen = parser.parse_args().sources
    report = read_report()
    if unknown := set(chosen) - report.sources.keys():
        parser.error(f"no such source: {', '.join(sorted(unknown))}")
    for number, source in report.sources.items():
        if not chosen or number in chosen:
            print(*format_source(number, source), "", sep="\n")
    print(*format_table(report.sources), sep="\n")
    print(*report.problems, sep="\n")
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
