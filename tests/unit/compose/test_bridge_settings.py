"""From settings to bridges: entry points, bridges given in Python, and errors."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest

from homing import ConfigError
from homing.compose import build_bridges
from homing.compose.factories import BRIDGES
from homing.core.ports.bridges import Bridge, BridgeMessage, HandledMessage
from homing.settings import load_settings


class PackagedBridge:
    """A bridge as another package would provide it."""

    def __init__(self, queue: str = "requests") -> None:
        self.queue = queue

    async def open(self) -> None: ...

    async def receive(self, limit: int) -> Sequence[BridgeMessage]:
        return ()

    async def acknowledge(self, handled: Sequence[HandledMessage]) -> None: ...

    async def check(self) -> None: ...

    async def close(self) -> None: ...


@pytest.fixture(autouse=True)
def _packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = EntryPoints([EntryPoint("packaged", f"{__name__}:PackagedBridge", "homing.bridges")])
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **query: found.select(**query))


def bridges(**tables: Any) -> dict[str, Bridge]:
    return build_bridges(load_settings(flags={"bridges": tables}))


def test_there_is_no_bridge_by_default() -> None:
    assert bridges() == {}


def test_a_bridge_is_made_from_its_table() -> None:
    made = bridges(packaged={}, other={"kind": "packaged", "queue": "retries"})
    assert {name: one.queue for name, one in made.items() if isinstance(one, PackagedBridge)} == {
        "packaged": "requests",
        "other": "retries",
    }


def test_bridges_can_be_given_in_python() -> None:
    own = PackagedBridge()
    assert build_bridges(load_settings(), {"own": own}) == {"own": own}


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        (
            {"pigeon": {}},
            f"bridges.pigeon.kind: is 'pigeon'; it must be one of {', '.join(BRIDGES)}",
        ),
        (
            {"packaged": {"prefetch": 1}},
            "bridges.packaged.prefetch: is not a setting of packaged, which has queue",
        ),
        ({"packaged": "retries"}, "bridges.packaged: is 'retries'; it must be a table [bridges.packaged]"),
    ],
)
def test_errors_name_the_setting_and_what_is_allowed(tables: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        bridges(**tables)
    assert str(caught.value) == said
