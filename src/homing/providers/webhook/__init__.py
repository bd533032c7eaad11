"""Webhooks, signed by the Standard Webhooks specification."""
