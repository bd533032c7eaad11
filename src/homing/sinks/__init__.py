"""Sinks: where the relay publishes events. Imports the core only."""
