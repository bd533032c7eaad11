"""The how-to page on adding a provider, followed literally: its files are written, and its suite runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/howto/add-a-provider.md"


def files() -> dict[str, str]:
    """Returns the code blocks that start with a file name."""
    blocks = re.findall(
        r"^```(?:python|toml)[^\n]*\n# (\S+\.(?:py|toml))\n(.*?)^```",
        PAGE.read_text(),
        re.MULTILINE | re.DOTALL,
    )
    return dict(blocks)


def test_the_provider_on_the_page_passes_its_suite_and_is_found_by_its_name(tmp_path: Path) -> None:
    for name, text in files().items():
        (tmp_path / name).write_text(text)
    assert {path.name for path in tmp_path.iterdir()} == {
        "gateway_errors.toml", "gateway.py", "test_gateway.py", "pyproject.toml", "homing.toml"
    }  # fmt: skip
    (tmp_path / "pyproject.toml").unlink()
    suite = run(tmp_path, "-m", "pytest", "-q", "-o", "asyncio_mode=auto", "-p", "no:cacheprovider")
    assert re.search(r"^\d\d passed", suite, re.MULTILINE), suite
    _install(tmp_path)
    listed = run(tmp_path, "-c", LISTS, GATEWAY_TOKEN="t")
    assert listed.strip() == "gateway ('sms',)"


LISTS = """
from homing.compose import build_roster
from homing.settings import load_settings
print(*[f"{one.id} {tuple(c.value for c in one.channels)}" for one in build_roster(load_settings())])
"""


def _install(folder: Path) -> None:
    """Writes the metadata that pip installs for an entry point."""
    info = folder / "gateway-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gateway\nVersion: 1.0\n")
    point = files()["pyproject.toml"].partition("\n")[2].replace('"', "")
    (info / "entry_points.txt").write_text(f"[homing.providers]\n{point}")


def run(folder: Path, *arguments: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin", **env},
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    return done.stdout + done.stderr
