"""Outgoing HTTP: the transport that all providers share, and the guard against requests to private addresses.

Imports the core only.
"""
