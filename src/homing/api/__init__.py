"""Homing over HTTP: one ASGI application, its routes by subject, and the OpenAPI that is made from them."""
