"""Providers without a vendor: console, file, Python function, and a scripted one for tests."""
