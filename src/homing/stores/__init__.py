"""Stores: the same operations in memory, on SQLite, on PostgreSQL and on MongoDB.

Modules of the SQLite and PostgreSQL stores that do the same job have the same name. `common` has the code
that stores share. Stores import only the core.
"""
