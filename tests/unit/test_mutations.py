"""The changes that tools/mutations.py makes to test the tests."""

from __future__ import annotations

import ast
from pathlib import Path

from mutation_operators import Mutation, find_mutations
from mutations import choose

SOURCE = '''
"""A module."""

import logging

log = logging.getLogger("x")


def first(limit: int, rows: list[int]) -> bool:
    """Returns something if limit < 3 and more."""
    assert limit > 0, "a limit"
    if limit <= 3 and not rows:
        log.warning("%d rows", limit + 1)
        raise ValueError(f"a limit of {limit + 1}")
    try:
        rows.append(1)
    except ValueError:
        rows.clear()
    finally:
        rows.pop()
    return False


class Second:
    def __repr__(self) -> str:
        return str(1 + 2)
'''

SQL = '''
DUE = """SELECT id FROM rows WHERE due_at <= ?1 AND status = 'queued' ORDER BY due_at DESC"""


def read(tx, lane):
    return tx.read(f"SELECT max(id) FROM rows WHERE lane = {lane if lane > 1 else 0}")


def text():
    return "no rows = no work"
'''


def changes(folder: Path, name: str, source: str) -> list[tuple[str, str]]:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(source)
    found = find_mutations(file, folder)
    for mutation in found:
        assert ast.dump(ast.parse(mutation.apply(file.read_bytes()))) != ast.dump(ast.parse(source))
    return [(mutation.kind, mutation.describe(file.read_bytes())) for mutation in found]


def test_every_change_is_another_program_and_leaves_texts_and_logging_alone(tmp_path: Path) -> None:
    assert changes(tmp_path, "module.py", SOURCE) == [
        ("condition false", "limit <= 3 and not rows → False"),
        ("condition true", "limit <= 3 and not rows → True"),
        ("and/or", "limit <= 3 and not rows → limit <= 3 or not rows"),
        ("drop operand", "limit <= 3 and not rows → not rows"),
        ("drop operand", "limit <= 3 and not rows → limit <= 3"),
        ("comparison", "limit <= 3 → limit < 3"),
        ("constant", "3 → 4"),
        ("drop not", "not rows → (rows)"),
        ("drop raise", 'raise ValueError(f"a limit of {limit + 1}") → pass'),
        ("drop call", "rows.append(1) → pass"),
        ("constant", "1 → 2"),
        ("except raises", "rows.clear() → raise"),
        ("drop call", "rows.clear() → pass"),
        ("drop finally", "rows.pop() → pass"),
        ("drop call", "rows.pop() → pass"),
        ("flip result", "return False → return True"),
    ]


def test_operators_of_sql_statements_are_changed_in_stores_only(tmp_path: Path) -> None:
    assert changes(tmp_path, "src/homing/stores/rows.py", SQL) == [
        ("sql", "<= → <"),
        ("sql", "AND → OR"),
        ("sql", "= → <>"),
        ("sql", "DESC → ASC"),
        ("sql", "max → min"),
        ("sql", "= → <>"),
    ]
    assert changes(tmp_path, "src/homing/engine/rows.py", SQL) == []


def test_a_seed_chooses_the_same_changes_again_and_one_per_function() -> None:
    chosen = choose(1, 40)
    assert [mutation.key for mutation in choose(1, 30)] == [mutation.key for mutation in chosen[:30]]
    assert len({_function(mutation) for mutation in chosen}) == 40
    assert [mutation.key for mutation in choose(2, 40)] != [mutation.key for mutation in chosen]


def _function(mutation: Mutation) -> tuple[str, str]:
    return mutation.path, mutation.function
