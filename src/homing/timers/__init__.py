"""Timers: systems that wake workers when notifications become due. A timer never holds work.

Each takes due times after a commit and calls `wake` in the processes with a worker. This package imports the
core, `net` and `brokers`.
"""
