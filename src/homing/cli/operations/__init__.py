"""Commands for operators: lists, statistics, dead letters, retries, purges, policies, providers and
templates.
"""
