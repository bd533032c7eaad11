"""The runnable Python blocks of the docs run, and print what the page shows.

Pages that also have commands, settings or SQL are followed in `tests/acceptance/test_docs_pages.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.docs_pages import ROOT, PageRun, all_pages, blocks_of


def _pages() -> list[Path]:
    return [page for page in all_pages() if {block.language for block in blocks_of(page)} == {"python"}]


@pytest.mark.parametrize("page", _pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_of_a_page_runs_and_prints_what_the_page_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with PageRun(page, tmp_path) as run:
        run.follow()
