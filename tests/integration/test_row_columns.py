"""The column table describes the schemas that all migrations together create."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import asyncpg
import pytest
from msgspec import NODEFAULT
from msgspec.structs import fields

from homing.core.lifecycle.rows import Row
from homing.stores.common.migrations import load_migrations
from homing.stores.common.row_columns import ROW_COLUMNS, ROW_FIELDS, RowColumn, SqlType, Writer, is_optional
from homing.stores.postgres import PostgresStore
from homing.stores.postgres.columns import MESSAGE, STATE
from homing.stores.sqlite import migrations

_AS_INTEGER = {SqlType.BIGINT, SqlType.INTEGER, SqlType.BOOLEAN}

_OTHERS = {"seq", "queue", "message", "unhurried"}
"""Columns that are not fields of `Row`."""


def default_of(column: RowColumn) -> Any:
    """The value that a row has in a column that its acceptance does not write."""
    [field] = [field for field in fields(Row) if field.name == column.name]
    if field.default is not NODEFAULT:
        return field.default
    assert field.default_factory is not NODEFAULT, f"{column.name} has no default, so `accept` must write it"
    return field.default_factory()


def test_the_columns_are_those_of_the_sqlite_schema() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        assert len(migrations.migrate(connection.cursor(), "here", 0)) == len(load_migrations("sqlite"))
        described = connection.execute("PRAGMA table_info(homing_notifications)").fetchall()
        found = {name: (type_, bool(required), default) for _, name, type_, required, default, _ in described}
        assert set(found) == {"seq", *ROW_FIELDS}
        for column in ROW_COLUMNS:
            type_, required, default = found[column.name]
            assert type_ == ("INTEGER" if column.type in _AS_INTEGER else "TEXT"), column.name
            assert required is not is_optional(column), column.name
            if Writer.ACCEPT not in column.writers:
                [(value,)] = connection.execute(f"SELECT {default if default is not None else 'NULL'}")
                expected = default_of(column)
                assert value == ("{}" if expected == {} else expected), column.name


@pytest.fixture
async def migrated(postgres_url: str) -> str:
    """The URL of a database to which all migrations were applied."""
    store = PostgresStore(postgres_url)
    await store.open()
    assert len(await store.migrate()) == len(load_migrations("postgres"))
    await store.close()
    return postgres_url


_COLUMNS = """
SELECT column_name, data_type, is_nullable = 'NO', column_default FROM information_schema.columns
WHERE table_schema = 'homing' AND table_name = $1
"""


async def test_the_columns_are_those_of_the_postgres_schema(migrated: str) -> None:
    connection = await asyncpg.connect(migrated)
    columns = {column.name: column for column in ROW_COLUMNS}
    for table, expected in (("live", STATE), ("settled", STATE), ("messages", {"seq": "bigint", **MESSAGE})):
        found = {name: about for name, *about in await connection.fetch(_COLUMNS, table)}
        assert {name: type_ for name, (type_, _, _) in found.items()} == expected, table
        for name in set(found) - _OTHERS:
            _, required, default = found[name]
            column = columns[name]
            # An empty JSON column is NULL.
            assert required is not (is_optional(column) or column.type is SqlType.JSON), (table, name)
            if Writer.ACCEPT not in column.writers:
                value = await connection.fetchval(f"SELECT {default or 'NULL'}")
                assert value == (None if column.type is SqlType.JSON else default_of(column)), name
    for view, names in (("states", set(STATE)), ("rows", {"seq", *ROW_FIELDS})):
        assert {name for name, *_ in await connection.fetch(_COLUMNS, view)} == names, view
    await connection.close()


def test_views_list_their_columns() -> None:
    """A view with `*` would depend on the order in which its tables got their columns."""
    for migration in load_migrations("postgres"):
        views = migration.sql.split("VIEW ")[1:]
        assert not [view for view in views if "SELECT *" in view.partition(";")[0]], migration.name
