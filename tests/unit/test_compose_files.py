"""The Compose files in deploy/compose are valid, and fit the settings and commands of this version."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from homing.settings import load_settings

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "compose"
FILES = sorted(FOLDER.glob("*.yaml"))
COMMANDS = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")


@pytest.fixture(params=FILES, ids=lambda path: path.name)
def composed(request: pytest.FixtureRequest) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(request.param.read_text(encoding="utf-8"))
    return loaded


def homing_commands(composed: dict[str, Any]) -> Iterator[list[str]]:
    for service in composed["services"].values():
        command = service.get("command", [])
        if isinstance(command, list) and command[:1] == ["homing"]:
            yield command[1:]


def test_there_is_a_file_without_a_broker() -> None:
    assert "postgres.yaml" in [path.name for path in FILES]


def test_a_file_names_only_services_volumes_and_settings_that_it_defines(composed: dict[str, Any]) -> None:
    services = composed["services"]
    for service in services.values():
        assert "image" in service
        assert set(service.get("depends_on", {})) <= set(services)
        named = [volume.partition(":")[0] for volume in service.get("volumes", [])]
        assert {name for name in named if not name.startswith((".", "/"))} <= set(composed.get("volumes", {}))
        assert {one["source"] for one in service.get("configs", [])} <= set(composed.get("configs", {}))


def test_passwords_are_not_in_the_file(composed: dict[str, Any]) -> None:
    for service in composed["services"].values():
        environment = service.get("environment", {})
        for name, value in environment.items() if isinstance(environment, dict) else ():
            if "PASSWORD" in name or "SECRET" in name:
                assert re.fullmatch(r"\$\{\w+:\?[^}]+\}", str(value)), name


def test_the_commands_and_their_options_exist(composed: dict[str, Any]) -> None:
    commands = list(homing_commands(composed))
    assert commands
    for command in commands:
        words = [word for word in command if not word.startswith(("-", "/")) and ":" not in word]
        sections = re.split(r"^### homing ", COMMANDS, flags=re.MULTILINE)
        fitting = [one for one in sections[1:] if " ".join(words).startswith(one.partition("\n")[0])]
        assert fitting, words
        for option in (word for word in command if word.startswith("--")):
            assert f"`{option}" in fitting[0] + sections[0], f"{' '.join(words)} has no option {option}"


def test_the_settings_in_a_file_load(
    composed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for config in composed.get("configs", {}).values():
        text = config["content"]
        assert tomllib.loads(text)
        for secret in re.findall(r"env:(\w+)", text):
            monkeypatch.setenv(secret, "hush")
        file = tmp_path / "homing.toml"
        file.write_text(text, encoding="utf-8")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HOMING_")}
        load_settings(file, env=environment)


def test_every_file_is_described() -> None:
    described = (FOLDER / "README.md").read_text(encoding="utf-8")
    for path in FILES:
        assert f"`{path.name}`" in described
