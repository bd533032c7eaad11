"""Reads the files of exact expected values in tests/vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VECTORS = Path(__file__).parents[1] / "vectors"


def vectors(name: str) -> Any:
    """Returns the contents of `tests/vectors/NAME.json`."""
    return json.loads((VECTORS / f"{name}.json").read_text())
