"""Retries: policies, presets, backoff, and `decide`, which turns an outcome into a settlement."""
