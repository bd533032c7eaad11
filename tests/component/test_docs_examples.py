"""The runnable code blocks of the docs run, and print what the page shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(
    r"^```python runnable\n(?P<code>.*?)^```\n(?:\n```text output\n(?P<output>.*?)^```)?",
    re.MULTILINE | re.DOTALL,
)


def _pages() -> list[Path]:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in pages if _BLOCK.search(page.read_text())]


@pytest.mark.parametrize("page", _pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_of_a_page_runs_and_prints_what_the_page_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    text = page.read_text()
    for block in _BLOCK.finditer(text):
        line = text[: block.start("code")].count("\n")
        code = compile("\n" * line + block["code"], str(page), "exec")
        exec(code, names)  # code of our own docs
        printed = capsys.readouterr().out
        if block["output"] is not None:
            assert printed == block["output"], f"{page.name}, line {line}"
