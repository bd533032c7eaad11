"""Intake: requests come in and accepted notifications go to the store, or to the spool while it is away."""
