"""Access: stores and checks tenants and API keys, and records the audit trail."""
