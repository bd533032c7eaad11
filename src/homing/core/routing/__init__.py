"""Routing: failover, circuit breakers, rate limits, delivery modes and the fair share of capacity."""
