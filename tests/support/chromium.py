"""Starts the browser of the machine for tests and pictures."""

from __future__ import annotations

import os
import shutil

from playwright.sync_api import Browser, Playwright

PROGRAM = os.environ.get("CHROMIUM") or shutil.which("chromium") or ""
"""Path of Chromium. Empty if it is not installed."""

_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def launch(playwright: Playwright) -> Browser:
    """Starts a browser without a window."""
    return playwright.chromium.launch(executable_path=PROGRAM, args=_FLAGS)
