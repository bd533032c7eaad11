"""Providers: each builds a request, sends it, and says what became of it. Adding one is one file."""
