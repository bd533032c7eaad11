"""Checkers, each for a group of the invariants that simulation/invariants.py lists."""
