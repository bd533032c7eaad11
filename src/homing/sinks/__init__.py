"""Sinks: where the relay publishes events. This package imports only the core."""
