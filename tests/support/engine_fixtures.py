"""Fixtures of the engine's tests, which run in virtual time: a day of waiting takes no time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from homing.rehearsal.virtual_time import VirtualLoop
from support.engine_harness import EngineHarness


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes an empty folder the current one, so that no homing.toml outside of the test is read."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def poll_rarely(empty_folder: Path) -> None:
    """Lets workers poll every 5 minutes only: in tests that wait for hours, frequent polls take real time."""
    (empty_folder / "homing.toml").write_text('[worker]\npoll_ms = "5m"\n')


@pytest_asyncio.fixture
async def harness(empty_folder: Path) -> AsyncIterator[EngineHarness]:
    """A store, a clock, and the engines that a test opens on them. They are closed after the test."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    made = EngineHarness(loop)
    yield made
    await made.close()
