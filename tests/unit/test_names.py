"""Rules for names: a public class name exists once, and every package says what it is for."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

import homing

PACKAGE = Path(homing.__file__).parent
SIMULATION = Path(__file__).parents[2] / "simulation"


def repeated_names(package: Path) -> list[str]:
    """Returns each public class name that is defined twice or more, with the places."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{path.relative_to(package.parent)}:{node.lineno}")
    return [f"{name}: {', '.join(found)}" for name, found in sorted(places.items()) if len(found) > 1]


def packages_without_docstring(package: Path) -> list[str]:
    """Returns the folders with modules whose `__init__` is missing or has no docstring."""
    folders = sorted({path.parent for path in package.rglob("*.py")})
    return [str(folder.relative_to(package.parent)) for folder in folders if not _docstring(folder)]


def _docstring(folder: Path) -> str | None:
    path = folder / "__init__.py"
    return ast.get_docstring(ast.parse(path.read_text())) if path.exists() else None


@pytest.mark.parametrize("package", [PACKAGE, SIMULATION], ids=["homing", "simulation"])
def test_a_public_class_name_exists_once(package: Path) -> None:
    assert repeated_names(package) == []


@pytest.mark.parametrize("package", [PACKAGE, SIMULATION], ids=["homing", "simulation"])
def test_every_package_has_a_docstring(package: Path) -> None:
    assert packages_without_docstring(package) == []


# The check itself ------------------------------------------------------------------------------------


def plant(tmp_path: Path, **sources: str) -> Path:
    """Writes a package with these modules. Two underscores in a name stand for a slash."""
    package = tmp_path / "planted"
    for name, source in sources.items():
        path = package.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return package


def test_a_repeated_class_name_is_found_with_both_places(tmp_path: Path) -> None:
    package = plant(tmp_path, engine__one="class Report: ...", cli__two="x = 1\nclass Report: ...")
    assert repeated_names(package) == ["Report: planted/cli/two.py:2, planted/engine/one.py:1"]


def test_a_repeated_class_name_is_found_in_a_function_and_within_one_module(tmp_path: Path) -> None:
    source = "class Report: ...\ndef build():\n    class Report: ..."
    assert repeated_names(plant(tmp_path, one=source)) == ["Report: planted/one.py:1, planted/one.py:3"]


def test_private_classes_may_repeat_names(tmp_path: Path) -> None:
    package = plant(tmp_path, engine__one="class _Row: ...", engine__two="class _Row: ...")
    assert repeated_names(package) == []


def test_the_client_may_not_repeat_a_name_of_another_part(tmp_path: Path) -> None:
    package = plant(tmp_path, wire__policies="class RuleBody: ...", client__types="class RuleBody: ...")
    assert repeated_names(package) == ["RuleBody: planted/client/types.py:1, planted/wire/policies.py:1"]


@pytest.mark.parametrize("source", ["", "import json", "# A comment.", "x = 'a string'"])
def test_a_package_without_a_docstring_is_found(tmp_path: Path, source: str) -> None:
    package = plant(tmp_path, one="x = 1", engine__two="x = 1")
    (package / "__init__.py").write_text('"""Says what it is for."""')
    (package / "engine" / "__init__.py").write_text(source)
    assert packages_without_docstring(package) == ["planted/engine"]


def test_a_folder_without_an_init_is_found(tmp_path: Path) -> None:
    assert packages_without_docstring(plant(tmp_path, one="x = 1")) == ["planted"]
