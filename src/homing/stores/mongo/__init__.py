"""The MongoDB store. It needs a replica set or a sharded cluster, because every write is a transaction."""

from homing.stores.mongo.store import MongoStore

__all__ = ["MongoStore"]
