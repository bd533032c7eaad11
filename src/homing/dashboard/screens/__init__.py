"""The screens of the dashboard: one module per subject, each with its table of routes."""
