"""Bridges: they bring requests in from message brokers. The engine stores and then acknowledges them.

This package imports the core, the engine and `brokers`.
"""
