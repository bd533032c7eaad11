"""Receipts: applies receipts from provider callbacks and status lookups, and detects missing receipts."""
