"""Routing: failover, circuit breakers, receipt health, rate limits, delivery modes and fair shares.

Also has the views of providers and breakers that operators see.
"""
