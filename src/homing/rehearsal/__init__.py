"""Rehearsals: the simulator behind `homing policy simulate`, and the virtual-time event loop that runs it.

A policy, an outage and traffic come in; delivery times and dead letters go out. Imports the core, the
engine and the memory store.
"""
