"""Rehearsals: the simulator behind `homing policy simulate`, and the virtual-time event loop that runs it.

The input is a policy, outages and traffic. The output is delivery times and dead letters. This package
imports the core, the engine and the SQLite store.
"""
