"""Upkeep: reclaiming expired leases, purging, alerts, and the relay from the outbox to the sinks."""
