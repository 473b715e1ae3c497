"""Reads the configuration: the only place that knows YAML."""
