"""Routes for API keys, tenants and the audit trail, and the authentication of every request."""
