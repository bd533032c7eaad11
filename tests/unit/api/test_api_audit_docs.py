"""The audit trail's actions are those on its docs page, and every change is recorded."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import homing
from homing.api.all_routes import all_routes

PACKAGE = Path(homing.__file__).parent
PAGE = Path(__file__).parents[3] / "docs" / "howto" / "read-the-audit-trail.md"
ACCEPTS = {"send_notification", "send_batch"}
"""Recorded in the notifications' own history."""
ONLY_LOOKS = {
    "check_provider",
    "check_providers",
    "check_templates",
    "preview_template",
    "simulate_policy",
}
"""Not GET, because they have a body or call other services, but they change nothing."""


def test_the_page_lists_exactly_the_actions_of_the_code() -> None:
    parts = ("api", "cli", "dashboard")
    sources = [path.read_text() for part in parts for path in sorted((PACKAGE / part).rglob("*.py"))]
    written = {
        name
        for text in sources
        for name in re.findall(r"(?:note|record_audit)\([^\"]*?\"([a-z_]+\.[a-z_]+)\"", text, re.DOTALL)
    }
    told: set[str] = set()
    for row in re.findall(r"^\| (`[a-z_]+\.[a-z_]+`.*?) \|", PAGE.read_text(), re.MULTILINE):
        subject = ""
        for name in re.findall(r"`([a-z_]*\.[a-z_]+)`", row):
            subject = name.partition(".")[0] or subject
            told.add(f"{subject}.{name.partition('.')[2]}")
    assert written == told


def test_every_keyed_operation_that_changes_something_is_recorded() -> None:
    """Reads the source: an operation that is not a GET writes to the trail, or is listed above."""
    silent = {
        route.handler.__name__
        for route in all_routes()
        if route.method != "GET" and route.scopes and "note(" not in inspect.getsource(route.handler)
    }
    assert silent == ACCEPTS | ONLY_LOOKS
