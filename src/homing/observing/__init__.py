"""Who watches: Prometheus metrics, the endpoint that shows them, and log lines for machines."""
