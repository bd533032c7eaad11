"""Providers: one folder per vendor, `local` for console, file, function and scripted, `common` for what they share.

A delivery comes in and an outcome goes out. Providers import `core` and `net`, and never another vendor.
"""
