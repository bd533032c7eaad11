"""The life of a notification: claims, outcomes, states, row transitions, receipts, commands and events."""
