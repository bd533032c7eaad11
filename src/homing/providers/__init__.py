"""Providers: each builds a request for one vendor or protocol, sends it, and classifies the response.

The engine passes in a delivery and gets an outcome back. A provider may also verify callbacks and look up the
status of a message. To add a provider, add one module.
"""
