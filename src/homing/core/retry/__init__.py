"""Retries: policies, presets, backoff, and the decisions before and after an attempt."""
