"""Rendering: templates from a folder or a tenant, compiled once and rendered in a bounded sandbox.

A template key, a locale and data come in; content goes out. Imports the core only.
"""
