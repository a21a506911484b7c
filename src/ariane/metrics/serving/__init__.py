"""Metrics over HTTP: Prometheus text and OpenMetrics, with those of the process, and health checks."""
