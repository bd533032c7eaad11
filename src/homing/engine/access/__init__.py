"""Access: tenants, API keys and the audit trail, as the engine stores and checks them."""
