"""Webhooks, signed as the Standard Webhooks specification requires."""
