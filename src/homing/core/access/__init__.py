"""Access: scopes, callers, tenants, API keys and the hash chains of the audit trail."""
