"""Routes for operators and administrators.

They cover dead letters, jobs, the queue, retries by hand, purges, policies, providers, recipients,
suppressions and templates.
"""
