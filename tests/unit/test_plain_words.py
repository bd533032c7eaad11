"""Words that made the prose of this project hard to read do not come back."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

PROJECT = Path(__file__).parents[2]

BETTER = {
    r"allowed are": "'at most … are allowed'",
    r"anew": "'again'",
    r"mend(s|ed|ing)?": "'fix'",
    r"in vain": "'wastes …' or 'without a result'",
    r"br(eak|eaks|eaking|oke|oken) off": "'abort' or 'stop'",
    r"so many": "'at most this many' or the number",
    r"by and by": "'gradually' or 'later'",
    r"under way": "'in flight', 'running' or 'in progress'",
    r"who(m?)ever": "the noun, for example 'the caller'",
    r"nobody": "'no one', or the noun: 'no process', 'no caller'",
    r"somebody": "'someone', or the noun: 'an operator', 'another process'",
    r"(is|are|was|were|be|been) told": "'gets', 'is called with', 'is notified' or 'is reported'",
    r"hears": "'returns', 'reports', 'logs' or 'is notified'",
    r"(whence|wherein|therein|thereof|lest)": "an everyday word",
}
"""Pattern → what to write instead. A space in a pattern may be a line break in the text."""

FRAGMENTS = ("Of", "By", "As", "Where", "With", "Who", "Whom", "Whose", "None", "So")
"""First words of docstrings that only make sense next to the name they describe. The docstring of a function
starts with a verb, that of a field or class with a noun."""

_SPACE = r"\s+"
_WORDS = {
    re.compile(rf"(?<![\w@.-])({pattern.replace(' ', _SPACE)})(?![\w@-]|\.\w)", re.IGNORECASE): better
    for pattern, better in BETTER.items()
}
_ANY_WORD = re.compile(rf"\b({'|'.join(BETTER).replace(' ', _SPACE)})\b", re.IGNORECASE)
"""Finds the few texts that are worth a closer look."""
_TELEGRAPH = re.compile(r"[;.] None: ")
_QUOTED = re.compile(r"`[^`]*`|(?<!\w)'[\w:.-]+'(?!\w)|\"\w+\"|https?://\S+")
"""Names, values and addresses. They are quoted, not written."""
_NOT_PROSE_IN_MARKDOWN = re.compile(r"^```.*?^```$|\]\([^)]*\)", re.MULTILINE | re.DOTALL)


class Prose(NamedTuple):
    """A piece of text that people read, and the line on which it starts."""

    line: int
    text: str
    is_docstring: bool = False


def python_prose(source: str) -> Iterator[Prose]:
    """Returns docstrings, comments, and strings of several words. Single words are names or test data."""
    nodes = list(ast.walk(ast.parse(source)))
    bodies = [body for node in nodes if isinstance(body := getattr(node, "body", None), list)]
    docstrings = {id(one.value) for body in bodies for one in body if isinstance(one, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            is_docstring = id(node) in docstrings
            if is_docstring or re.search(r"\S\s+\S", node.value):
                yield Prose(node.lineno, node.value, is_docstring)
    if any("#" in line and _ANY_WORD.search(line) for line in source.splitlines()):  # tokenizing is slow
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield Prose(token.start[0], token.string)


def complaints(name: str, text: str) -> list[str]:
    """Returns every word and fragment that is to be replaced, with its file, its line and a better word."""
    if name.endswith(".py"):
        found = [(one, one.text) for one in python_prose(text)]
    elif name.endswith(".md"):
        found = [(Prose(1, text), _NOT_PROSE_IN_MARKDOWN.sub(_blank, text))]
    else:
        found = [(Prose(1, text), text)]
    return [complaint for prose, read in found for complaint in _complaints(name, prose, read)]


def _complaints(name: str, prose: Prose, text: str) -> Iterator[str]:
    first = re.match(r"\s*(\w+)\b(?!')", text)
    if prose.is_docstring and first and first[1] in FRAGMENTS:
        yield f"{name}:{prose.line}: the docstring starts with {first[1]!r}; start with a verb or a noun"
    if not (_ANY_WORD.search(text) or _TELEGRAPH.search(text)):
        return
    text = _QUOTED.sub(_blank, text)
    if match := _TELEGRAPH.search(text):
        yield f"{name}:{_line(prose, text, match)}: has {match[0].strip()!r}; write 'If None, …'"
    for pattern, better in _WORDS.items():
        for match in pattern.finditer(text):
            words = " ".join(match[0].split())
            yield f"{name}:{_line(prose, text, match)}: has {words!r}; write {better}"


def _line(prose: Prose, text: str, match: re.Match[str]) -> int:
    return prose.line + text.count("\n", 0, match.start())


def _blank(match: re.Match[str]) -> str:
    """Replaces everything but line breaks, so that the lines keep their numbers."""
    return re.sub(r"[^\n]", "_", match[0])


def project_files() -> Iterator[Path]:
    for folder in ("src", "simulation", "tests", "tools", "bench"):
        yield from (PROJECT / folder).rglob("*.py")
    for folder in ("docs", "bench"):
        yield from (PROJECT / folder).rglob("*.md")
    yield from PROJECT.glob("*.md")
    yield from (PROJECT / "src").rglob("*.toml")
    yield PROJECT / "Makefile"


def test_no_file_has_one_of_these_words() -> None:
    found = [
        complaint
        for path in sorted(project_files())
        if path != Path(__file__)
        for complaint in complaints(str(path.relative_to(PROJECT)), path.read_text())
    ]
    assert not found, "\n" + "\n".join(found)


# The check itself ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "line", "says"),
    [
        ('"""Looks anew."""', 1, "has 'anew'; write 'again'"),
        ('"""Looks.\n\nLater it looks\nAnew.\n"""', 4, "has 'Anew'; write 'again'"),
        ('def f():\n    """Of the page."""', 2, "the docstring starts with 'Of'"),
        ('class A:\n    x: int\n    """Where there is one."""', 3, "the docstring starts with 'Where'"),
        ('class A:\n    x: int\n    """None where it has none."""', 3, "the docstring starts with 'None'"),
        ('"""Who asks gets one."""', 1, "the docstring starts with 'Who'"),
        ("x = 1\ny = 2  # nobody waits", 2, "has 'nobody'; write 'no one'"),
        ("x = f'has {n} requests; allowed are {m}'", 1, "has 'allowed are'; write 'at most"),
        ("x = ('a send is under '\n     'way')", 1, "has 'under way'; write 'in flight'"),
        ('"""What is under\nway."""', 1, "has 'under way'"),
        ("raise E('the sends were broken off')", 1, "has 'broken off'; write 'abort'"),
        ("raise E('what no retry mends')", 1, "has 'mends'; write 'fix'"),
        ('"""The time; None: there is no time."""', 1, "has '; None:'; write 'If None, …'"),
        ("# The caller is told later.", 1, "has 'is told'"),
        ("# It hears of it.", 1, "has 'hears'"),
    ],
)
def test_a_word_is_found_with_its_line_and_a_better_one(source: str, line: int, says: str) -> None:
    (complaint,) = complaints("src/one.py", source)
    assert complaint.startswith(f"src/one.py:{line}: ")
    assert says in complaint


@pytest.mark.parametrize(
    "source",
    [
        "x = 'nobody'",
        "nobody = mended(anew)",
        "x = 'a-key-that-nobody-knows'",
        "x = 'sent to nobody@example.org or nobody.invalid'",
        "x = \"there is no tenant 'nobody'\"",
        '"""Returns `NOBODY` if the route needs no key."""',
        '"""Offers what it has. If None, there is no limit."""',
        '"""Whether the store is available."""',
        "x = 'Of the page'",
        "# As before, the amended rows are mentioned.",
        "x = 'the recommended and commended ones'",
    ],
)
def test_names_test_data_and_other_words_are_accepted(source: str) -> None:
    assert complaints("src/one.py", source) == []


def test_pages_are_checked_outside_of_code_and_links() -> None:
    page = "# Keys\n\n```\nnobody\n```\n\nSee [it](0024-nobody-waits.md) and `nobody`.\nNobody can read it.\n"
    (complaint,) = complaints("docs/page.md", page)
    assert complaint.startswith("docs/page.md:8: has 'Nobody'")


def test_other_files_are_checked_as_a_whole() -> None:
    (complaint,) = complaints("Makefile", "test:\n\t@echo done in vain\n")
    assert complaint.startswith("Makefile:2: has 'in vain'")


def test_the_files_of_the_project_are_among_those_that_are_checked() -> None:
    names = {str(path.relative_to(PROJECT)) for path in project_files()}
    assert {
        "README.md",
        "Makefile",
        "bench/README.md",
        "src/homing/__init__.py",
        "simulation/__init__.py",
    } <= names
    assert {"tests/conftest.py", "tools/run_tests.py", "docs/adr/README.md"} <= names
    assert "src/homing/settings/default.toml" in names
