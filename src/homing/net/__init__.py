"""Outgoing HTTP: the transport of providers and sinks, and the guard against requests to private addresses.

Also what every connection to another system needs: credentials, and the signatures of Standard Webhooks.
This package imports only the core.
"""
