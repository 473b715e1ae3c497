"""Finds model files and knows them by name: the only place that opens a GGUF file."""
