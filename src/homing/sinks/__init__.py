"""Where events go: alerts, dead letters, status changes."""
