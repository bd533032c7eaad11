"""Providers: one folder per vendor, `local` for providers without a vendor, and `common` for shared code.

A provider takes a delivery and returns its outcome. Its code imports from `core` and `net`, and never from
another vendor's folder.
"""
