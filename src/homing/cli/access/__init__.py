"""Commands for API keys, tenants and the audit trail."""
