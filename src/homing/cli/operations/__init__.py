"""Commands for operators: lists, explain, health, dead letters, policies, providers and templates."""
