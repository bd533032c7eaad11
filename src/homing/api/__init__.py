"""The REST service: HTTP requests come in, engine calls go out, and JSON responses come back.

The folders match those of the engine: `intake`, `receipts`, `operations` and `access`. The folder `http`
has the server, and `description` has the OpenAPI document. The service imports the engine and the core.
"""
