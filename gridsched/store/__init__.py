"""Keeps what must outlive the process: the only place that knows SQLite."""
