"""Commands that accept notifications: `send`, for one notification or a CSV file."""
