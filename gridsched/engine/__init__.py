"""Owns llama-server processes and talks HTTP to them: the only place that does either."""
