"""The REST API: an ASGI application, its routes by subject, and the OpenAPI document generated from them.

HTTP requests come in. Each route reads its request strictly, calls the engine and returns a struct, which is
encoded as JSON. Imports `homing.core` and `homing.engine`, but no store and no provider.
"""
