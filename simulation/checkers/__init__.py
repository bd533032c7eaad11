"""Checkers: each checks a group of invariants after every change."""
