"""The engine: from a request to a settled notification, over ports alone."""
