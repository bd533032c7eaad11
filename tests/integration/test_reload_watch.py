"""Requests to reload the settings are handled whatever an earlier one raised."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from homing import Homing
from homing.cli.common import reload_watch
from homing.cli.common.reload_watch import watch_for_reload
from homing.core.errors import StoreUnavailable
from homing.engine.operations.reload_requests import ReloadAnswer
from homing.settings import Settings, load_settings


@pytest.fixture
async def homing(tmp_path: Path) -> AsyncIterator[Homing]:
    async with Homing(tmp_path / "homing.db", worker_name="mail-1") as homing:
        yield homing


async def ask(homing: Homing) -> ReloadAnswer:
    """Requests a reload, and returns the answer of the process."""
    request = await homing.reload_requests.ask(who="ada")
    async with asyncio.timeout(60):
        while not (found := await homing.reload_requests.answers(request.number)):
            pass
        return found[0]


async def test_an_error_of_another_package_is_answered_and_ends_nothing(
    homing: Homing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    errors: list[Exception] = [ValueError("the key SG.secret is wrong"), RuntimeError("out of ideas")]

    def load() -> Settings:
        if errors:
            raise errors.pop(0)
        return load_settings(
            None, env={}, flags={"store": str(tmp_path / "homing.db"), "worker_name": "mail-1"}
        )

    monkeypatch.setattr(reload_watch, "LOOK_EVERY_S", 0.01)
    async with watch_for_reload(homing, load):
        for name in ("ValueError", "RuntimeError"):
            with caplog.at_level(logging.ERROR, "homing.reload"):
                found = await ask(homing)
            assert (found.worker, found.error) == ("mail-1", f"unexpected {name}; see the log of the process")
            assert "nothing was changed" in caplog.text
        assert (await ask(homing)).error == ""


async def test_a_request_that_cannot_be_read_ends_nothing(
    homing: Homing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = homing.reload_requests.newest
    failed: list[bool] = []

    async def fail_twice() -> object:
        if len(failed) < 2:
            failed.append(True)
            raise TypeError("a newer release wrote another field")
        return await newest()

    monkeypatch.setattr(reload_watch, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(homing.reload_requests, "newest", fail_twice)
    async with watch_for_reload(homing, lambda: load_settings(None, env={}, flags={"worker_name": "mail-1"})):
        while len(failed) < 2:
            await homing.reload_requests.answers(0)
        assert (await ask(homing)).worker == "mail-1"


async def test_a_request_is_answered_even_if_the_store_fails_right_after_it_was_read(
    homing: Homing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch once read a request a second time, and dropped it if the store failed in between."""
    newest = homing.reload_requests.newest
    numbers: set[int] = set()
    failures = 0

    async def fail_after_each_new_request() -> object:
        nonlocal failures
        if failures < len(numbers):
            failures += 1
            raise StoreUnavailable("the store is away")
        found = await newest()
        numbers.add(0 if found is None else found.number)
        return found

    monkeypatch.setattr(reload_watch, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(homing.reload_requests, "newest", fail_after_each_new_request)
    async with (
        Homing(tmp_path / "homing.db", worker_name="desk") as desk,
        watch_for_reload(homing, lambda: load_settings(None, env={}, flags={"worker_name": "mail-1"})),
    ):
        for number in (1, 2):
            async with asyncio.timeout(60):
                while failures < number:  # the first one follows the look at the start
                    await desk.reload_requests.answers(0)
            assert (await ask(desk)).worker == "mail-1"
