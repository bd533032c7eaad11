"""Firebase Cloud Messaging: push notifications."""
