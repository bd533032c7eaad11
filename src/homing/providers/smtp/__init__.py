"""SMTP: email through any mail server."""
