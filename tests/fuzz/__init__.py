"""Fuzzing of what reads bytes from strangers. Not part of the suite: `make fuzz`."""
