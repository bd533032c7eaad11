"""Azure Communication Services: SMS and email."""
