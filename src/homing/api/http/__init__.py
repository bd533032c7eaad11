"""The HTTP layer under every route: server, routing, request bodies, responses and error responses."""
