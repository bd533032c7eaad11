"""The HTTP server of the service and of the metrics endpoint. It serves any ASGI application."""
