"""Routing: failover, circuit breakers, receipt health, rate limits, delivery modes and fair shares."""
