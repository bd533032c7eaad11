"""Recipients: profiles, registry entries, quiet hours and unsubscribe links."""
