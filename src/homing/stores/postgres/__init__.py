"""The PostgreSQL store: as many worker processes as one likes, on one database."""

from homing.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
