"""Retries: policies and their views, presets, backoff, and the decisions before and after an attempt."""
