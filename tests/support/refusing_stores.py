"""Databases that refuse some rows for good, by triggers on the tables of real stores."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import asyncpg


async def refuse(url: str, table: str, condition: str, action: str = "INSERT") -> None:
    """Makes the database at this URL refuse rows of a table, such as `attempts`, that meet the condition.

    The condition is SQL about `NEW`. For SQLite, `url` is the path of the file.
    """
    name = f"refuse_{abs(hash((table, condition, action)))}"
    if not url.startswith("postgresql:"):
        connection = sqlite3.connect(Path(url), timeout=10)
        with connection:
            connection.execute(
                f"CREATE TRIGGER {name} BEFORE {action} ON homing_{table} WHEN {condition}"
                " BEGIN SELECT RAISE(ABORT, 'refused by a test'); END"
            )
        connection.close()
        return
    connection_pg = await asyncpg.connect(url)
    try:
        await connection_pg.execute(
            f"CREATE FUNCTION homing.{name}() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'refused by a test'; END $$"
        )
        await connection_pg.execute(
            f"CREATE TRIGGER {name} BEFORE {action} ON homing.{table} FOR EACH ROW WHEN ({condition})"
            f" EXECUTE FUNCTION homing.{name}()"
        )
    finally:
        await connection_pg.close()


async def allow(url: str, table: str, condition: str, action: str = "INSERT") -> None:
    """Removes the refusal that `refuse` has added with the same arguments."""
    name = f"refuse_{abs(hash((table, condition, action)))}"
    if not url.startswith("postgresql:"):
        connection = sqlite3.connect(Path(url), timeout=10)
        with connection:
            connection.execute(f"DROP TRIGGER {name}")
        connection.close()
        return
    connection_pg = await asyncpg.connect(url)
    try:
        await connection_pg.execute(f"DROP TRIGGER {name} ON homing.{table}")
    finally:
        await connection_pg.close()
