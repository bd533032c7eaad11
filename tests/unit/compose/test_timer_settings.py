"""From settings to timers: which timer serves which priority, entry points, and errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest

from homing import ConfigError, Priority
from homing.compose import build_timers
from homing.compose.factories import TIMERS
from homing.core.lifecycle.due_times import DueTime
from homing.core.ports.timers import AssignedTimer, Wake
from homing.settings import load_settings


class PackagedTimer:
    """A timer as another package would provide it."""

    def __init__(self, url: str = "tcp://localhost") -> None:
        self.url = url

    async def open(self, store_now_ms: Callable[[], int]) -> None: ...

    async def close(self) -> None: ...

    async def schedule(self, batch: Sequence[DueTime]) -> None: ...

    async def listen(self, wake: Wake) -> None: ...


@pytest.fixture(autouse=True)
def _packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = EntryPoints([EntryPoint("packaged", f"{__name__}:PackagedTimer", "homing.timers")])
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **query: found.select(**query))


def timers(**table: Any) -> dict[str, AssignedTimer]:
    return build_timers(load_settings(flags={"timers": table}))


def test_there_is_no_timer_by_default() -> None:
    assert timers() == {}
    assert timers(critical="store") == {}


def test_a_timer_gets_the_priorities_that_name_it() -> None:
    made = timers(critical="fast", high="fast", low="packaged", fast={"kind": "packaged", "url": "tcp://a"})
    assert made["fast"].priorities == {Priority.CRITICAL, Priority.HIGH}
    assert made["packaged"].priorities == {Priority.LOW}
    urls = [one.timer.url for one in made.values() if isinstance(one.timer, PackagedTimer)]
    assert urls == ["tcp://a", "tcp://localhost"]


def test_the_file_may_name_timers_too() -> None:
    Path("homing.toml").write_text('[timers]\nhigh = "packaged"\n[timers.packaged]\nurl = "tcp://b"\n')
    made = build_timers(load_settings())
    assert made["packaged"].priorities == {Priority.HIGH}


def test_redis_needs_no_more_than_its_name() -> None:
    made = timers(critical="redis", high="redis")
    assert type(made["redis"].timer).__name__ == "RedisTimer"
    assert made["redis"].priorities == {Priority.CRITICAL, Priority.HIGH}


def test_timers_given_in_python_serve_all_priorities_unless_they_say_otherwise() -> None:
    own = PackagedTimer()
    some = AssignedTimer(own, frozenset({Priority.LOW}))
    made = build_timers(load_settings(), {"all": own, "some": some})
    assert made == {"all": AssignedTimer(own, frozenset(Priority)), "some": some}


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"urgent": "packaged"}, "timers.urgent: is 'urgent'; it must be one of critical, high, medium, low"),
        (
            {"high": "sundial"},
            f"timers.sundial.kind: is 'sundial'; it must be one of {', '.join(TIMERS)}",
        ),
        (
            {"high": "redis", "redis": {"url": "http://localhost"}},
            (
                "timers.redis.url: must have the form redis://HOST:PORT/DATABASE"
                " or rediss://HOST:PORT/DATABASE"
            ),
        ),
        (
            {"high": "redis", "redis": {"prefix": ""}},
            "timers.redis.prefix: must have 1 to 200 characters",
        ),
        (
            {"packaged": {"url": "tcp://a"}},
            (
                "timers.packaged: is not assigned to a priority; "
                'for example, set critical = "packaged" in [timers]'
            ),
        ),
        (
            {"high": "packaged", "packaged": {"port": 1}},
            "timers.packaged.port: is not a setting of packaged, which has url",
        ),
        (
            {"high": "packaged", "packaged": {"url": 1}},
            "timers.packaged.url: has the wrong type; give text",
        ),
    ],
)
def test_errors_name_the_setting_and_what_is_allowed(table: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        timers(**table)
    assert str(caught.value) == said
