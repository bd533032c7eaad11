"""Tools for tests: builders, a manual clock, a fault server, and conformance suites for stores and providers.

Authors of plug-ins may use them. They may import everything, and production code never imports them.
"""
