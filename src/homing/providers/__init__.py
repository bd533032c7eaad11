"""Providers: one folder per vendor, `local` for those without a vendor, and `common` for shared code.

A delivery comes in and an outcome goes out. Providers import `core` and `net`, and never another vendor.
"""
