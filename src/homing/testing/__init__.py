"""Helpers for the tests of stores, providers and programs that use Homing. They may import every part.

The suites hold the rules that every store and every provider must follow. Production code imports nothing
from here.
"""
