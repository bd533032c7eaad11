"""Access rules: scopes, API keys and the hash chain of the audit trail."""
