"""Prometheus: the only place that knows its client library."""
