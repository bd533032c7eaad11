"""Apprise: chat and other services by URL."""
