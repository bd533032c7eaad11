"""Sinks: where the relay publishes events. This package imports the core, `net` and `brokers`."""
