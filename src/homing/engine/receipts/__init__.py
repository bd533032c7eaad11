"""Receipts: applies receipts from provider callbacks and status lookups, and monitors missing ones."""
