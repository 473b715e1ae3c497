"""Reads devices: the only place that knows NVML or /proc."""
