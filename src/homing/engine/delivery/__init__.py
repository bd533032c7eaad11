"""Delivery: a worker claims due rows, attempts them and settles the outcomes."""
