"""Reads devices: the only place that knows NVML, amdgpu's files or what is held in memory."""
