"""A pytest plug-in for `tools/mutations.py`: runs the chosen tests, in the chosen order, and no others."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps the tests whose ids are in the file that MUTATION_TESTS names. null in the file keeps all."""
    chosen: list[str] | None = json.loads(Path(os.environ["MUTATION_TESTS"]).read_text())
    if chosen is None:
        return
    order = {test: number for number, test in enumerate(chosen)}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in order])
    items[:] = sorted((item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid])
