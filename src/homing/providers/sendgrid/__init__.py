"""SendGrid: email."""
