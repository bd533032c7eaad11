"""Templates: reads them from a folder or the registry, compiles them once, and renders them within fixed
limits.

A template key, channel, locale and data come in; the content of a message, or an error with file and line,
comes out.
"""
