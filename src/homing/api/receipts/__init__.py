"""Routes that receive the callbacks of providers."""
