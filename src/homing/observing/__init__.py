"""Telemetry: Prometheus metrics, the endpoint that serves them, OpenTelemetry traces, and log formatting."""
