"""The OpenAPI document, the `/docs` page, and the probe and metrics routes."""
