"""Telemetry: Prometheus metrics and their HTTP endpoint, OpenTelemetry traces, and structured logs.

Observer calls come in; samples, spans and log lines go out. Imports the core only.
"""
