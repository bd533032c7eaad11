"""Connections to message brokers and Redis, which providers, sinks, timers and bridges share.

This package imports the core, and the credentials of `net`.
"""
