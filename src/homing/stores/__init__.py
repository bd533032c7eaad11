"""Stores: the same operations on SQLite and PostgreSQL, with the same module name for the same job.

Batches come in and committed rows go out. `common` has what the stores share. Stores import the core only.
"""
