"""The REST service: HTTP requests come in, engine calls go out, and JSON responses come back.

The folders match those of the engine: `intake`, `receipts`, `operations` and `access`; `http` has the server
and `description` the OpenAPI document. Imports the engine and core.
"""
