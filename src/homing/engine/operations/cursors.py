"""Checks cursors, which lead from one page of a list to the next one."""

from __future__ import annotations

import re

from homing.core.errors import InvalidRequest

_ID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")


def check_cursor(cursor: str | None) -> None:
    """Raises `InvalidRequest` for a text that is not a cursor of notifications, which is the id of one."""
    if cursor is not None and _ID.fullmatch(cursor) is None:
        raise foreign_cursor()


def foreign_cursor() -> InvalidRequest:
    """Returns the error for a cursor that the list has not returned."""
    return InvalidRequest("cursor", "is not a cursor of this list; use one that the list returned")
