"""The SQLite store: one file, no service, several processes if need be."""

from homing.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
