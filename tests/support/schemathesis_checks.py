"""A schemathesis check for `schema_run.py`: no response may contain another tenant's words."""

from __future__ import annotations

import atexit
import os
from pathlib import Path
from typing import Any

import schemathesis

FOREIGN = tuple(os.environ.get("HOMING_FOREIGN", "").split())
"""Words that occur only in other tenants' data."""
COUNTED = os.environ.get("HOMING_COUNTED", "")

_seen = 0


@schemathesis.check
def no_word_of_another_tenant(ctx: Any, response: Any, case: Any) -> None:
    """Checks bodies and headers."""
    global _seen
    _seen += 1
    said = response.content + repr(sorted(response.headers.items())).encode()
    for word in FOREIGN:
        if word.encode() in said and word not in repr((case.path_parameters, case.query, case.body)):
            raise AssertionError(f"{case.method} {case.path} tells {word!r}, which is another tenant's")


@atexit.register
def _count() -> None:
    if COUNTED and _seen:
        Path(COUNTED).write_text(str(_seen))
