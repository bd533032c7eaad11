"""The PostgreSQL store: any number of worker processes share one database."""

from homing.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
