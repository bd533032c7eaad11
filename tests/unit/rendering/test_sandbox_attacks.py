"""Attacks on the template sandbox: each ends quickly in an error or in harmless text, with little memory."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Mapping
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from homing.core.errors import InvalidRequest
from support import template_attacks as attacks
from support.template_attacks import LEAKED, SECRET
from support.template_folders import render

KINDS: tuple[Callable[[], list[attacks.Attack]], ...] = (
    attacks.reaching,
    attacks.chains,
    attacks.formats,
    attacks.forbidden_filters,
    attacks.includes,
    attacks.bombs,
    attacks.hostile_data,
)
MOST_CPU_S = 30.0
"""The renderer stops after 0.25 s of CPU time. An attack that it did not stop would take hours."""
MOST_CHARACTERS = 6_000_000
MOST_MEMORY_KIB = 400 * 1024


def outcome(source: str, data: Mapping[str, Any], part: str) -> str | None:
    """Returns the rendered text, or None if the template was refused. Other errors are raised."""
    try:
        content = render(source, data, part=part, partials=attacks.PARTIALS)
    except InvalidRequest as error:
        return None if len(str(error)) < 1_000 and SECRET not in str(error) else f"<class {error}"
    return unescape(content.html or "") if part == "html" else content.text


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_no_attack_succeeds(
    kind: Callable[[], list[attacks.Attack]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOMING_SECRET", SECRET)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    succeeded = []
    for number, (source, data) in enumerate(kind()):
        started = time.thread_time()
        written = outcome(source, data, "html" if number % 2 else "text")
        took = time.thread_time() - started
        if written is not None and (LEAKED.search(written) or len(written) > MOST_CHARACTERS):
            succeeded.append((source[:200], written[:200]))
        if took > MOST_CPU_S:
            succeeded.append((source[:200], f"{took:.1f} s"))
    assert succeeded == []
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_MEMORY_KIB


def test_there_are_more_than_a_thousand_different_attacks() -> None:
    assert len({source for kind in KINDS for source, _ in kind()}) > 1_000


def test_access_to_python_internals_is_refused_and_not_merely_empty() -> None:
    """Almost all are: data may have a member of that name, and some things print as nothing."""
    written = [text for source, data in attacks.chains() if (text := outcome(source, data, "text"))]
    assert set(written) <= {"minemine", attacks.DATA["code"], "FalseTrue", "1"}


def test_data_is_never_a_template() -> None:
    assert outcome("{{ code }}", attacks.DATA, "text") == attacks.DATA["code"]


def test_nothing_outside_the_folder_is_read(tmp_path: Path) -> None:
    from homing.rendering.folder_templates import read_folder

    (tmp_path / "secret.txt").write_text(SECRET)
    root = tmp_path / "templates"
    for name in ("_shared", "t/en"):
        (root / name).mkdir(parents=True)
    (root / "_shared/out.txt").symlink_to(tmp_path / "secret.txt")
    (root / "t/en/sms.txt").symlink_to("../../../secret.txt")
    (root / "_linked").symlink_to(tmp_path)
    folder = read_folder(root)
    assert not folder.partials
    assert not folder.written
    assert [why for _, why in folder.strays] == ["is a link that leads outside the folder"] * 2
    assert SECRET not in repr(folder)
