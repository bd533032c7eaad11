"""The engine takes a request through to a settled notification.

It reaches stores and providers through ports.
"""
