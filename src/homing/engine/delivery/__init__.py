"""Delivery: a worker claims due notifications, attempts them and settles the outcomes."""
