"""Receipts: provider callbacks and status lookups come in; verified receipts go to the store."""
