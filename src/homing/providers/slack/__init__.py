"""Slack: chat messages through incoming webhooks."""
