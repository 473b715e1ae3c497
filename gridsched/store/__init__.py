"""Keeps what must outlive the process: the only folder that knows SQLite. Two `ports.Store`s, on disk and in memory.

Must never stop the server: a file that cannot be read or written is said once, and the server goes on without it.
"""

from gridsched.store.measurements import MeasurementStore
from gridsched.store.memory import MemoryStore

__all__ = ["MeasurementStore", "MemoryStore"]
