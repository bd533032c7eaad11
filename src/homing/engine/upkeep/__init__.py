"""Upkeep: reclaims expired leases, purges old data, raises alerts, and publishes events to the sinks."""
