"""Access: scopes, callers, tenant names, API keys and the hash chains of the audit trail."""
