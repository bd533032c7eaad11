"""Outgoing HTTP: the transport that all providers share, and the guard against requests to private addresses.

This package imports only the core.
"""
