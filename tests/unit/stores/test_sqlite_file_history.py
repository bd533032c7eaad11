"""The identity of a SQLite file's history, and the SQLite versions that are accepted."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from homing.core.errors import StoreError
from homing.stores.sqlite.connection import connect
from homing.stores.sqlite.history import FileHistory


def test_the_identity_names_the_file_and_changes_whenever_rows_are_gone() -> None:
    history = FileHistory()
    history.opened("a")
    first = history.identity
    assert first.startswith("a:")
    history.went_back()
    second = history.identity
    history.opened("b")
    assert history.identity.startswith("b:")
    assert len({first, second, history.identity}) == 3


def test_fewer_rows_than_before_mean_that_the_file_has_gone_back() -> None:
    history = FileHistory()
    history.opened("a")
    assert not history.accepted(0, 3)
    assert not history.accepted(3, 5)
    assert not history.accepted(6, 7)  # another process has accepted one
    assert history.accepted(6, 8)
    assert not history.accepted(8, 9)


def test_another_file_may_have_fewer_rows() -> None:
    history = FileHistory()
    history.opened("a")
    history.accepted(0, 9)
    history.opened("b")
    assert not history.accepted(0, 1)


@pytest.mark.parametrize(("version", "is_accepted"), [((3, 34, 1), False), ((3, 35, 0), True)])
def test_sqlite_3_35_is_the_oldest_that_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: tuple[int, int, int], is_accepted: bool
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", version)
    if is_accepted:
        connect(tmp_path / "file.db", 1000).close()
    else:
        with pytest.raises(StoreError, match=r"needs SQLite 3\.35"):
            connect(tmp_path / "file.db", 1000)
