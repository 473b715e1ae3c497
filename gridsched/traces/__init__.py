"""OpenTelemetry: the only place that knows its SDK, which is an optional extra."""
