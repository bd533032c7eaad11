"""Code that several providers share: HTTP requests, error tables, secrets, email and push content."""
