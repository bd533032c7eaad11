"""The life of a notification: claims, outcomes, row transitions, receipts, commands, jobs and events."""
