"""Intake: checks requests and stores them, or writes them to the spool while the store is unavailable."""
