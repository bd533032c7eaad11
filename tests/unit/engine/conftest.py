"""The engine's tests run in virtual time: a day of waiting takes no time and every run is the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from homing.sim.loop import VirtualLoop

from .support import World


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"virtual": VirtualLoop}


@pytest.fixture(autouse=True)
def _nowhere_in_particular(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings but a test's own: neither a homing.toml nor the environment has a say."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def rare_looks(_nowhere_in_particular: None, tmp_path: Path) -> None:
    """For tests that wait for hours: a worker wakes when something is due, and looks in vain less often."""
    (tmp_path / "homing.toml").write_text('[worker]\npoll_ms = "5m"\n')


@pytest_asyncio.fixture
async def world() -> AsyncIterator[World]:
    """A store, a clock, and engines over them that are closed at the end."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    made = World(loop)
    yield made
    await made.close()
