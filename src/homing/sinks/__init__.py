"""Sinks: destinations of events such as alerts, dead letters and status changes."""
