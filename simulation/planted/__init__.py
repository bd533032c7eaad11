"""Planted bugs: each breaks one rule on purpose, and the simulator must catch it."""
