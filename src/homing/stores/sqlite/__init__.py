"""The SQLite store: one file, which several processes may share, and no server."""

from homing.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
