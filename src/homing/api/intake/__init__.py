"""Routes that accept notifications, one by one or in batches, and the one-click unsubscribe links."""
